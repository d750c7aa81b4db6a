"""`serfer app register` as users run it: whole, killed in the middle, and twice at once."""

import pytest

from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from serfer.core.variants import Place, Source
from serfer.registry.registration import Registrations, RegistrationState
from tests.variants.conftest import given
from tests.variants.digits import trained  # noqa: F401 - trained once for the module


def test_a_network_is_registered_with_its_plans_and_measured_and_predicted_figures(start, kept, tmp_path):
    command = start("medium", "--instance", "c7i.large")
    made = command.registered()
    assert (made["application"], made["network"], made["version"], made["made"]) == ("digits", "medium", 1, True)
    application = kept().known("digits")
    (version,) = application.networks
    assert application.live_release.networks == {"medium": 1}
    assert (application.classes, version.validation.images, version.validation.classes) == (10, 200, 10)
    functions = [each for each in version.variants if each.place is Place.FUNCTIONS]
    instances = [each for each in version.variants if each.place is Place.INSTANCE]
    assert functions
    assert instances
    for each in version.variants:
        figures = (each.latency_ms, each.load_ms, each.peak_mb, each.qps, each.usd)
        source = Source.PREDICTED if each.place is Place.FUNCTIONS else Source.MEASURED
        assert {figure.source for figure in figures} == {source}
        assert all(figure.value > 0 for figure in figures)
        assert each.accuracy.images == 180  # the other 20 calibrate
        assert each.accuracy.share > 0.8
    assert {each.kind for each in instances} == {"c7i.large"}
    assert any("pooled" in remark for remark in version.remarks)
    for each in made["variants"]:
        directory = kept().directory(each["artefact"], tmp_path / "fetched")
        assert (directory / "unsplit.onnx").is_file()
        assert (directory / "int8.onnx").is_file() == (each["precision"] == "int8")


@pytest.mark.killed
@pytest.mark.slow
def test_killed_in_the_middle_it_shows_nothing_and_goes_on_where_it_was(start, kept):
    killed = start()
    killed.wait_for("step 3 of")
    killed.kill()
    assert kept().applications() == []
    (name,) = kept().store.names("registrations/")
    registration = Registrations(kept(), "a test").read(name.removeprefix("registrations/").removesuffix(".json"))
    done = [step.name for step in registration.steps if step.state is RegistrationState.DONE]
    assert len(done) == 2
    again = start()
    made = again.registered()
    assert made["made"]
    assert made["registration"] == registration.id
    assert not any("step 1 of" in line or "step 2 of" in line for line in again.lines)
    assert any("step 3 of" in line for line in again.lines)
    assert [each.version for each in kept().known("digits").networks] == [1]


@pytest.mark.two_at_once
@pytest.mark.slow
def test_twice_at_once_one_does_the_work_and_both_say_the_same(start, kept):
    results = [command.registered() for command in (start(), start())]
    assert sorted(each.pop("made") for each in results) == [False, True]
    assert results[0] == results[1]
    assert [each.version for each in kept().known("digits").networks] == [1]
    later = start().registered()
    assert not later.pop("made")
    assert later == results[0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--most", "0"), 2, "'--most'"),
        (("--set", "max_loss=2"), 2, "max_loss is from 0 to 1, not 2"),
        (("--instance", "x1.huge"), 2, "the price of 'x1.huge' is not known: give --usd-per-hour"),
        (("--name", "a/b"), 2, "cannot name a network: give --name"),
        (("--set", "latency_ms=0"), 2, "--latency-ms must be more than 0"),
    ],
)
def test_options_that_cannot_be_are_refused(files, tmp_path, monkeypatch, capsys, arguments, code, message):
    monkeypatch.setenv("SERFER_REGISTRY", str(tmp_path / "registry"))
    monkeypatch.setenv("SERFER_CACHE_DIR", str(tmp_path / "cache"))
    assert _exit_code(app, ["app", "register", *given(files, "small"), *arguments], _Interrupt()) == code
    assert message in " ".join(capsys.readouterr().err.split())
