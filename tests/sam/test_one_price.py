"""One network in one form has one price, whichever command says it."""

import re

import onnx
import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.cli.shared.network_options import NO_OPTIONS, plan_of
from serfer.splitter.profiling import part_costs
from serfer.wiring import local
from tests.e2e.small import small_onnx
from tests.splitter.test_as_is import recurrent

_LINE = r"[\d.]+ ms warm, [\d,]+ ms cold, \$[\d.]+ a million queries, \$[\d.]+ with 2% cold \([a-z, ]+\)"
_TOTALS = r"^(?:an idle month: |a million queries, ).+$"
_SHOWN = {
    "explain": ("explain", "plan"),
    "cost of a network": ("cost", "net.onnx"),
    "cost of a plan": ("cost", "plan"),
    "package": ("deploy", "package", "plan", "--out", "build"),
    "cost of a build": ("cost", "build"),
}


@pytest.fixture
def said(tmp_path, monkeypatch, capsys, light_layers):  # noqa: ARG001 - a fixture
    """Return what serve, split and other commands say of a network that they keep whole, by command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERFER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("SERFER_ACCOUNT", "1024,10")  # every command plans for it
    monkeypatch.setattr(local, "dependency_bytes", lambda *_: 0)
    monkeypatch.setattr(part_costs, "measured", lambda *_: (3.0, 1 << 20))

    def said(network, commands):
        onnx.save(network, "net.onnx")
        plan_of("net.onnx", NO_OPTIONS, lambda _step: None, deployed=False)
        texts, splits = {"serve": capsys.readouterr().err}, ("split", "net.onnx", "--out")
        for name, words in {"split": (*splits, "plan"), "whole": (*splits, "whole", "--whole"), **commands}.items():
            texts[name] = CliRunner().invoke(app, words).output
        return texts

    return said


@pytest.mark.parametrize(
    ("make", "commands", "times"),
    [(small_onnx, _SHOWN, "predicted"), (lambda: recurrent(size=16), {}, "predicted, in part timed here")],
)
def test_commands_name_one_price_of_a_network_in_one_function(said, make, commands, times):
    texts = said(make(), commands)
    found = {name: re.findall(_LINE, text) for name, text in texts.items()}
    assert found == dict.fromkeys(texts, found["split"][:1])
    assert found["split"][0].endswith(f"({times})")
    if "package" in texts:
        totals = [re.findall(_TOTALS, texts[name], re.MULTILINE) for name in ("package", "cost of a build")]
        assert totals[0] == totals[1] != []
        told = " ".join(texts.values())
        assert not [words for words in ("over redis", "for redis", "may find a better one") if words in told]
    assert len({re.search(r"function of [\d,]+ MB", texts[name])[0] for name in ("serve", "split", "whole")}) == 1
