"""Plan directories that earlier versions wrote: today's format answers as recorded, others are refused with advice."""

from pathlib import Path

import numpy as np
import pytest

import serfer
from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from serfer.core.plan import FORMAT
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from tests.caches import new_cache

PLANS = Path(__file__).parent / "data" / "plans"
DIGESTS = {
    5: "8d3e0b1441d3e8fa4246012f65f68e50bb065df51823e4912adaddffe47809f5",
    6: "251290a7fcb787a1975691dc9e08cf25182db1448f9e66fd9f365241aa779e15",
    7: "801e2e3a85ec253a77c44feb69b86ab17a1bc40d239ea25ea2d6cdf0e056f953",
    8: "161c98f33282af5a0827b23cbd391ea5ef8125e0d099383b6bf7b97b0de76abd",
}
"""Of plans without gangs, of the same network as a gang, of a wider one whose weights are fetched, and of another
network, which has several outputs."""


def test_every_format_whose_functions_take_whole_images_is_recorded():
    formats = range(1, FORMAT - 1)  # 9 has windows, 10 a network in 8 bits that no function reads
    assert sorted(path.name for path in PLANS.glob("v*")) == [f"v{number}" for number in formats]


@pytest.mark.parametrize("number", DIGESTS)
def test_the_recorded_plan_is_unchanged(number):
    plan = load_plan(PLANS / f"v{number}")
    assert (plan.digest, bool(plan.gangs)) == (DIGESTS[number], number == 6)
    fetched = [stage.functions[0].weights.bytes for stage in plan.stages if stage.weights_in == "fetched"]
    assert (len(fetched), sum(fetched) > 0) == ((len(plan.stages), True) if number == 7 else (0, False))


@pytest.mark.parametrize("number", DIGESTS)
@pytest.mark.parametrize("inline", ["planned", "never"])
def test_the_recorded_plan_answers_bit_for_bit(inline, number):
    recorded = PLANS / f"v{number}"
    with serfer.open(recorded, inline=inline) as pipeline:
        answer = pipeline.run(np.load(recorded / "input.npy"))
    if number == 8:
        outputs = np.load(recorded / "answer.npz")
        assert {name: (value.dtype, value.tobytes()) for name, value in answer.items()} == {
            name: (outputs[name].dtype, outputs[name].tobytes()) for name in outputs.files
        }
    else:
        assert answer.tobytes() == np.load(recorded / "answer.npy").tobytes()


def test_the_recorded_plan_answers_the_same_where_functions_fetch_its_weights(tmp_path_factory):
    recorded, settings = PLANS / "v7", Settings(cache_dir=new_cache(tmp_path_factory))
    with serfer.open(recorded, workers="local", settings=settings) as pipeline:
        answer = pipeline.run(np.load(recorded / "input.npy"))
    assert answer.tobytes() == np.load(recorded / "answer.npy").tobytes()


@pytest.mark.parametrize("number", range(1, min(DIGESTS)))
def test_an_older_format_is_refused_with_advice(number):
    with pytest.raises(serfer.PlanError, match=rf"format {number}, this version reads 5 to 10: .* serfer split"):
        serfer.open(PLANS / f"v{number}")


def test_an_older_format_ends_a_command_with_exit_code_3(capsys):
    assert _exit_code(app, ["explain", str(PLANS / "v1")], _Interrupt()) == serfer.PlanError.exit_code == 3
    assert "serfer split" in capsys.readouterr().err
