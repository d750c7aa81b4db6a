"""`serfer study fetch-traces`: public traces are converted here; what is not the one of the pages is not written."""

import bz2
import hashlib
import io
import json
import tarfile
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.cost.loads.trace import parse_trace
from serfer_bench.study.loads import fetching
from serfer_bench.study.loads.catalogue import PublicTrace, catalogue
from serfer_bench.study.sim.simulate import LoadSpec
from tests.support.http_stub import serving

RATES = b"5\n5.70000000000000\n0.5000\n"
RATES_CSV = b"t_seconds,rps\n0,5\n9,5.7\n18,0.5\n"


def packed(text):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:bz2") as archive:
        member = tarfile.TarInfo("workload.txt")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return data.getvalue()


def trace(csv=RATES_CSV, **changes):
    known = PublicTrace("", "them/loads", "c0ffee", "some/rates.txt", "none stated", "rates", 9, "")
    return replace(known, sha256=hashlib.sha256(csv).hexdigest(), **changes)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Two traces of one source, and one of another."""
    counts = trace(b"t_seconds,rps\n0,1\n1,2\n", path="n/workload.tbz2", form="counts", step_s=1)
    traces = {"a": trace(), "b": trace(), "counts": counts}
    monkeypatch.setattr(fetching, "catalogue", lambda: traces)


def called(*arguments):
    result = CliRunner().invoke(app, ["study", "fetch-traces", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit | UnavailableError):
        raise result.exception
    return result


@contextmanager
def server(files, short=0):
    """Serve files by their paths, `short` bytes less of each than is said; yield the address, and what was asked."""
    asked = []

    def answer(request):
        asked.append(request.path)
        data = files.get(request.path)
        headers = {"Content-Length": str(len(data or b""))}
        return 404 if data is None else 200, headers, (data or b"")[: -short or None]

    with serving() as http:
        http.answer = answer
        yield http.url, asked


FILES = {"/them/loads/c0ffee/some/rates.txt": RATES, "/them/loads/c0ffee/n/workload.tbz2": packed(b"1 2")}


def test_traces_are_downloaded_once_a_source_and_kept_when_run_again(tmp_path):
    with server(FILES) as (address, asked):
        first = called("--out", tmp_path / "t", "--mirror", address, "--json")
        again = called("--out", tmp_path / "t", "--mirror", address, "--json")
    assert [json.loads(line)["state"] for line in first.stdout.splitlines()] == ["written"] * 3
    assert [json.loads(line)["state"] for line in again.stdout.splitlines()] == ["kept"] * 3
    assert sorted(asked) == sorted(FILES)
    assert first.stderr == "".join(f"fetching {address}{path}\n" for path in FILES)
    assert again.stderr == ""
    assert (tmp_path / "t/a.csv").read_bytes() == (tmp_path / "t/b.csv").read_bytes() == RATES_CSV
    assert sorted(file.name for file in (tmp_path / "t").iterdir()) == ["a.csv", "b.csv", "counts.csv"]


def test_what_cannot_be_downloaded_is_named_and_the_rest_is_written(tmp_path):
    only = dict(list(FILES.items())[1:])
    with server(only) as (address, _):
        result = called("--out", tmp_path, "--mirror", address)
    assert isinstance(result.exception, UnavailableError)
    assert str(result.exception) == "2 of 3 traces are missing: a, b"
    assert "404" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["counts.csv"]


@pytest.mark.parametrize(
    ("short", "limit", "most", "why"),
    [
        (2, "MAX_SOURCE_BYTES", 1000, "more expected"),
        (0, "MAX_SOURCE_BYTES", 10, "more than 10 bytes"),
        (0, "MAX_S", -1.0, "takes more than"),
    ],
)
def test_a_download_is_whole_and_bounded(monkeypatch, short, limit, most, why):
    monkeypatch.setattr(fetching, limit, most)
    with server(FILES, short) as (address, _), pytest.raises(UnavailableError, match=why):
        fetching.download(f"{address}/them/loads/c0ffee/some/rates.txt")


def test_file_that_is_not_the_trace_is_not_replaced_or_written(tmp_path):
    given = ("a", "--from", tmp_path / "rates.txt", "--out")
    (tmp_path / "rates.txt").write_bytes(RATES + b"7\n")
    result = called(*given, tmp_path / "t")
    assert "has changed: converted it has the SHA-256" in result.stderr
    assert [*(tmp_path / "t").iterdir()] == []
    (tmp_path / "a.csv").write_text("mine")
    (tmp_path / "rates.txt").write_bytes(RATES)
    result = called(*given, tmp_path)
    assert "a.csv is there already and is not this trace" in result.stderr
    assert (tmp_path / "a.csv").read_text() == "mine"


@pytest.mark.parametrize("clone", ["", "loads"], ids=["a clone", "a folder of clones"])
def test_sources_are_found_in_clones(tmp_path, clone):
    for path, data in FILES.items():
        place = tmp_path / clone / path.split("c0ffee/")[1]
        place.parent.mkdir(parents=True)
        place.write_bytes(data)
    assert called("--out", tmp_path / "t", "--from", tmp_path).exit_code == 0
    assert (tmp_path / "t/counts.csv").read_bytes() == b"t_seconds,rps\n0,1\n1,2\n"


def test_without_a_place_traces_are_listed_with_licence_and_address(monkeypatch):
    monkeypatch.setattr(fetching, "catalogue", catalogue)
    rows = [json.loads(line) for line in called("--json").stdout.splitlines()]
    assert [row["name"] for row in rows] == [*catalogue()]
    assert all(row["licence"] and row["address"].startswith("https://raw.githubusercontent.com/") for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("twiter",), "there is no trace 'twiter': there are a, b, counts"),
        (("--from", "x"), "--out DIR"),
        (("--mirror", "file:///etc"), "https://"),
        (("--out", "t", "--from", __file__), "name the traces that it is the source of"),
    ],
)
def test_wrong_options_are_refused(monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        called(*arguments)
    assert [*tmp_path.iterdir()] == []


def test_counts_and_times_become_counts_of_whole_rows(tmp_path):
    seconds = np.arange(150) % 7
    source = packed(" ".join(map(str, seconds)).encode())
    made = trace(form="counts", step_s=60).converted(source)
    assert made.decode() == f"minute,requests\n0,{seconds[:60].sum()}\n1,{seconds[60:120].sum()}\n"
    assert trace(form="counts", step_s=1, rows=2).converted(source) == b"t_seconds,rps\n0,0\n1,1\n"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44"]
    lines += ["2023-11-16 18:15:47.6000000,1,1", "2023-11-16 18:15:48.7000000,1,1"]
    made = trace(form="times", step_s=1).converted("\r\n".join(lines).encode())
    assert made == b"t_seconds,rps\n0,2\n1,0\n2,1\n"
    assert parse_trace(tmp_path, made.decode()).queries == 3


@pytest.mark.parametrize(
    ("form", "source"),
    [
        ("counts", b"BZh9 not bzip2"),
        ("counts", bz2.compress(b"no tar file")),
        ("counts", packed(b"1 two 3")),
        ("counts", packed(b"9" * 30)),
        ("counts", bz2.compress(bytes(65 * 1024 * 1024))),
        ("times", b"TIMESTAMP\nnever,1\n"),
        ("times", b"TIMESTAMP\n"),
        ("times", b"TIMESTAMP\n2023-11-16 18:15:46\n2023-11-16 18:15:47+00:00\n"),
        ("times", b"TIMESTAMP\n1000-01-01\n3000-01-01\n"),
        ("rates", b"<html>"),
        ("rates", bytes(17 * 1024 * 1024)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_of_its_form_or_too_large_is_refused(form, source):
    with pytest.raises(InputError, match=r"rates\.txt (is not what|has more than)"):
        trace(form=form, step_s=60).converted(source)


def test_a_public_trace_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(InputError, match="serfer study fetch-traces infless_bursty --out"):
        LoadSpec(str(tmp_path / "infless_bursty.csv")).read()
