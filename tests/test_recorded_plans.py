"""Recorded plan directories: those of today's format answer as recorded, an older one is refused with advice."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import serfer
from serfer.api.entrypoints.aws_driver import models_of
from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from serfer.core.plan import FORMAT
from serfer.plan_directory import load_plan
from serfer.settings import DriverSettings, Settings
from tests.caches import new_cache

PLANS = Path(__file__).parent / "data" / "plans"
OLDER = PLANS / "format-7"
DIGESTS = {
    "stages": "4a012d21cb9f9b54b6248e333fa862a96a46abfca299e2e7982d634519349ff6",
    "gang": "89f43db2681f0391542cdd4e6dc04c1073599931f9d479aa4b49ab51d55498b6",
    "fetched": "7fae0bea1f283f3256c104ee5c949c89432f761f2aa1802ddf62a9053dfb62fb",
    "dense": "606a0b156ac4a85e8575f3d3bc3126c98bce1584e1aa5f1917ebe86b69b6c7f1",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_the_recorded_plan_is_unchanged(name):
    plan = load_plan(PLANS / name)
    assert (plan.format, plan.digest, bool(plan.gangs)) == (FORMAT, DIGESTS[name], name == "gang")
    fetched = [stage.functions[0].weights.bytes for stage in plan.stages if stage.weights_in == "fetched"]
    assert (len(fetched), sum(fetched) > 0) == ((len(plan.stages), True) if name == "fetched" else (0, False))


@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.parametrize("inline", ["planned", "never"])
def test_the_recorded_plan_answers_bit_for_bit(inline, name):
    recorded = PLANS / name
    with serfer.open(recorded, inline=inline) as pipeline:
        answer = pipeline.run(np.load(recorded / "input.npy"))
    if name == "dense":
        outputs = np.load(recorded / "answer.npz")
        assert {name: (value.dtype, value.tobytes()) for name, value in answer.items()} == {
            name: (outputs[name].dtype, outputs[name].tobytes()) for name in outputs.files
        }
    else:
        assert answer.tobytes() == np.load(recorded / "answer.npy").tobytes()


def test_the_recorded_plan_answers_the_same_where_functions_fetch_its_weights(tmp_path_factory):
    recorded, settings = PLANS / "fetched", Settings(cache_dir=new_cache(tmp_path_factory))
    with serfer.open(recorded, workers="local", settings=settings) as pipeline:
        answer = pipeline.run(np.load(recorded / "input.npy"))
    assert answer.tobytes() == np.load(recorded / "answer.npy").tobytes()


REFUSAL = rf"format-7/plan\.json has format 7, this version reads {FORMAT}: .* serfer split"


def test_an_older_format_is_refused_with_advice():
    with pytest.raises(serfer.PlanError, match=REFUSAL):
        serfer.open(OLDER)


def test_an_older_format_is_refused_before_a_driver_starts():
    with pytest.raises(serfer.PlanError, match=REFUSAL):
        models_of(DriverSettings(LAMBDA_TASK_ROOT=str(PLANS), plan="stages:format-7"))


@pytest.mark.parametrize("command", ["explain", "verify", "cost", "package --out b", "serve --plan", "instance --plan"])
def test_an_older_format_ends_a_command_with_exit_code_3(command, capsys):
    assert _exit_code(app, [*command.split(), str(OLDER)], _Interrupt()) == serfer.PlanError.exit_code == 3
    assert "serfer split" in capsys.readouterr().err
