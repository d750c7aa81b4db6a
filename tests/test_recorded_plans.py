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
from tests.data.plans import record

PLANS = Path(__file__).parent / "data" / "plans"
OLDER = PLANS / "format-7"
DIGESTS = {
    "stages": "1e34437f8ddd9042895d5644e5d5015e111eaee7ee3df8f201582452248480d6",
    "gang": "a6360fa8b565d0ba82fd7aefa9164bdd02847ca0dadbcab0117f9d073ed5b663",
    "fetched": "02151c1eca5de2a955abea0f850af567b368264c3a1bbefff0885d99a60c64d1",
    "dense": "fbc2bc640365c415afc0ec832ca700d764e6b4e1dd2254c4991363bcf201243b",
}


@pytest.mark.exact
@pytest.mark.parametrize("name", DIGESTS)
def test_the_recorded_plan_is_unchanged(name):
    plan = load_plan(PLANS / name)
    assert (plan.format, plan.digest, bool(plan.gangs)) == (FORMAT, DIGESTS[name], name == "gang")
    fetched = [stage.functions[0].weights.bytes for stage in plan.stages if stage.weights_in == "fetched"]
    assert (len(fetched), sum(fetched) > 0) == ((len(plan.stages), True) if name == "fetched" else (0, False))


@pytest.mark.exact
@pytest.mark.parametrize(
    "name", ["dense", *(pytest.param(name, marks=pytest.mark.slow) for name in DIGESTS if name != "dense")]
)
def test_a_network_that_is_split_again_without_cold_queries_is_the_recorded_plan(name, tmp_path):
    place, recorded = tmp_path / name, load_plan(PLANS / name)
    plan = record.split(name, place)
    assert (plan.digest, plan.why, plan.cold_share) == (DIGESTS[name], recorded.why, 0.0)
    assert (place / "plan.json").read_bytes() == (PLANS / name / "plan.json").read_bytes()
    for file in (each.relative_to(place) for each in place.rglob("*") if each.suffix in (".onnx", ".bin")):
        assert (place / file).read_bytes() == (PLANS / name / file).read_bytes()
    for other, was in zip(plan.alternatives, recorded.alternatives, strict=True):
        assert (other.stages, other.fits, other.chosen) == (was.stages, was.fits, was.chosen)
        assert (other.ms, other.usd) == pytest.approx((was.ms, was.usd), rel=1e-9)


@pytest.mark.exact
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


@pytest.mark.exact
def test_the_recorded_plan_answers_the_same_where_functions_fetch_its_weights(tmp_path_factory):
    recorded, settings = PLANS / "fetched", Settings(cache_dir=new_cache(tmp_path_factory))
    with serfer.open(recorded, workers="local", settings=settings) as pipeline:
        answer = pipeline.run(np.load(recorded / "input.npy"))
    assert answer.tobytes() == np.load(recorded / "answer.npy").tobytes()


@pytest.mark.exact
def test_a_plan_without_its_explanation_answers_the_same(tmp_path, tmp_path_factory):
    shutil.copytree(PLANS / "gang", tmp_path / "plan")
    (tmp_path / "plan" / "explanation.json").unlink()
    settings = Settings(cache_dir=new_cache(tmp_path_factory))
    with serfer.open(tmp_path / "plan", workers="local", settings=settings) as pipeline:
        answer = pipeline.run(np.load(PLANS / "gang" / "input.npy"))
    assert answer.tobytes() == np.load(PLANS / "gang" / "answer.npy").tobytes()


REFUSAL = rf"format-7/plan\.json has format 7, this version reads {FORMAT}: .* serfer split"


@pytest.mark.exact
def test_an_older_format_is_refused_with_advice():
    with pytest.raises(serfer.PlanError, match=REFUSAL):
        serfer.open(OLDER)


@pytest.mark.exact
def test_an_older_format_is_refused_before_a_driver_starts():
    with pytest.raises(serfer.PlanError, match=REFUSAL):
        models_of(DriverSettings(LAMBDA_TASK_ROOT=str(PLANS), plan="stages:format-7"))


@pytest.mark.exact
@pytest.mark.parametrize(
    "command", ["explain", "verify", "cost", "deploy package --out b", "serve --plan", "instance --plan"]
)
def test_an_older_format_ends_a_command_with_exit_code_3(command, capsys):
    assert _exit_code(app, [*command.split(), str(OLDER)], _Interrupt()) == serfer.PlanError.exit_code == 3
    assert "serfer split" in capsys.readouterr().err
