"""Networks that strangers upload: what takes hours, all memory, or the process that reads it is refused in a line."""

import resource
from datetime import UTC, datetime

import onnx
import pytest

from serfer.core.errors import ModelError
from serfer.variants.trial import try_network
from tests.variants.digits import recurrent
from tests.variants.hostile import FILES, HARMLESS, loop

PROCESSOR_S = 5.0
FEW = ("loop-1e8", "constant-1e12", "tile-1e9", "functions-2e30", "functions-chain-5000", "external-above")
_DAY = datetime.now(UTC).toordinal()
TODAYS = [*dict.fromkeys((*FEW, *([*FILES][(_DAY * 2 + number) % len(FILES)] for number in range(2))))]


def refusal(name, tmp_path):
    path = tmp_path / "network.onnx"
    path.write_bytes(FILES[name]())
    with pytest.raises(ModelError) as refused:
        try_network(path, None, processor_s=PROCESSOR_S)
    return str(refused.value)


def check(name, tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = refusal(name, tmp_path)
    assert "\n" not in text
    assert "Traceback" not in text
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, "this process has read it, too"


@pytest.mark.hostile
@pytest.mark.parametrize("name", TODAYS)
def test_a_hostile_file_is_refused_in_a_line(name, tmp_path):
    check(name, tmp_path)


@pytest.mark.hostile
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.weekly if number % 3 else pytest.mark.slow)
        for number, name in enumerate(FILES)
    ],
)
def test_every_hostile_file_is_refused_in_a_line(name, tmp_path):
    check(name, tmp_path)


def test_there_are_sixty_of_them():
    assert len(FILES) >= 60


def test_a_network_like_any_other_passes(tmp_path):
    path = tmp_path / "network.onnx"
    path.write_bytes(HARMLESS)
    try_network(path, None)


@pytest.mark.slow
def test_what_runs_as_it_is_passes(tmp_path):
    path = tmp_path / "network.onnx"
    onnx.save(recurrent(), path)
    try_network(path, None)


def test_loops_are_refused_because_other_images_may_take_longer(tmp_path):
    path = tmp_path / "network.onnx"
    path.write_bytes(loop(2))
    with pytest.raises(ModelError, match=r"\(Loop\) decides by its input what is computed"):
        try_network(path, None)


@pytest.mark.who_may
def test_the_process_that_reads_a_network_has_no_credentials(tmp_path, monkeypatch):
    """It prints its environment in place of reading: what it was given is what a network could take."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("SERFER_INSTANCE_KEY", "secret")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib\n"
        "given = [name for name in os.environ if 'secret' in os.environ[name]]\n"
        f"pathlib.Path({str(tmp_path / 'given')!r}).write_text(repr(given))\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "network.onnx"
    path.write_bytes(b"")
    with pytest.raises(ModelError):
        try_network(path, None)
    assert (tmp_path / "given").read_text() == "[]"
