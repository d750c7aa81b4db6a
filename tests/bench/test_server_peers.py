"""`serfer bench peers`: its load against stand-ins, what is left out and why, and all of it on a small network."""

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import onnx
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from serfer.core.errors import InputError, UnavailableError, UsageError, WrongAnswerError
from serfer_bench.core.quantiles import quantile_interval
from serfer_bench.peers.command import Comparison, examples_of
from serfer_bench.peers.peers import BARE, NULL, PEERS, SERFER, Launch, Peer, Request
from serfer_bench.peers.report import results
from serfer_bench.peers.rounds import Example, Load, Round, measure
from serfer_bench.peers.running import Running
from tests.bench.running import run
from tests.e2e.small import small_onnx
from tests.support.aiohttp_server import serve_route

RIGHT = [{"index": 3, "score": 0.75}, {"index": 1, "score": 0.25}]
SERVER = """
import http.server, json, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps({"predictions": json.loads(os.environ["ANSWER"])}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PEER_PORT"])), Handler).serve_forever()
"""


def stand_in(name, program, answer=RIGHT):
    return Peer(
        name,
        "",
        lambda _: [sys.executable, "-c", program],
        lambda launch, image: Request(launch.url, image, dict),
        variables=lambda launch: {**launch.variables, "ANSWER": json.dumps(answer)},
    )


def loaded(answer, load, *, bounded=False, workers=2):
    """Return the round of a stand-in in this process that answers with `answer(number)`, and its most at once."""
    counts = {"now": 0, "most": 0, "all": 0}

    async def handle(request):
        counts["now"] += 1
        counts["all"] += 1
        counts["most"] = max(counts["most"], counts["now"])
        await request.read()
        await asyncio.sleep(0)
        counts["now"] -= 1
        return answer(counts["all"])

    async def run():
        async with serve_route("POST", "/", handle) as url, aiohttp.ClientSession() as http:
            peer = replace(stand_in("stand-in", ""), bounded=bounded)
            launch = Launch(Path(sys.executable), Path(), Path(), 1, workers, (urlsplit(url).port,))
            return await measure(Running(peer, launch, os.getpid(), 0.5, http), [Example(b"image", RIGHT)] * 2, load)

    return asyncio.run(run()), counts


def answered(_):
    return web.json_response({"predictions": RIGHT})


def test_a_round_counts_its_queries_and_a_bounded_system_is_never_sent_more_than_its_workers():
    found, counts = loaded(answered, Load(alone=5, together=40, at_once=4, warm_up=8))
    assert (len(found.alone_ms), len(found.together_ms), counts["all"]) == (5, 40, 53)
    assert counts["most"] == 4
    assert found.bytes > 10_000_000
    assert found.rate > 0 < found.client_share
    _, counts = loaded(answered, Load(1, 40, 8, 0), bounded=True, workers=3)
    assert counts["most"] <= 3


@pytest.mark.parametrize(
    "wrong", [[{"index": 2, "score": 0.75}, RIGHT[1]], [{"index": 3, "score": 0.752}, RIGHT[1]], RIGHT[:1]]
)
def test_one_wrong_answer_among_many_fails_with_both_answers_and_an_error_with_its_words(wrong):
    def answer(number):
        return web.json_response({"predictions": wrong}) if number == 30 else answered(number)

    with pytest.raises(WrongAnswerError, match=r"stand-in gives .*the network itself"):
        loaded(answer, Load(1, 40, 4, 0))
    with pytest.raises(UnavailableError, match="stand-in answered 500: no memory left"):
        loaded(lambda _: web.Response(status=500, text="no memory left"), Load(1, 4, 2, 0))


def compared(peers, tmp_path):
    load = Load(alone=2, together=6, at_once=2, warm_up=0)
    comparison = Comparison(tmp_path, [Example(b"image", RIGHT)], 1, 1, load, tmp_path, lambda _: None)
    comparison.pythons.update(dict.fromkeys(peers, Path(sys.executable)))
    return comparison, comparison.rounds(2)


def test_a_server_that_ends_is_left_out_with_what_it_said_and_one_whose_answer_is_wrong_fails(tmp_path):
    broken = stand_in("broken", "import sys; sys.exit('no such model here')")
    comparison, rounds = compared([broken, stand_in("sound", SERVER)], tmp_path)
    assert comparison.left_out == {"broken": "broken ended with 1: no such model here"}
    assert [(one.system, len(one.together_ms)) for one in rounds] == [("sound", 6), ("sound", 6)]
    with pytest.raises(WrongAnswerError, match="liar"):
        compared([stand_in("liar", SERVER, answer=RIGHT[::-1])], tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_peer_that_cannot_be_installed_stands_in_the_table_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(Peer, "requirements", property(lambda _: f"{tmp_path}/absent.whl"))
    comparison = Comparison(tmp_path, [], 1, 1, Load(1, 1, 1, 1), tmp_path, lambda _: None)
    comparison.install([PEERS[2]], tmp_path)
    systems, how = results(PEERS[2:3], [], comparison.left_out, []).tables
    assert systems.body[0][:2] == ("LitServe", "left out")
    assert how.body[0][2].startswith("left out: litserve cannot be installed: ERROR")
    assert [*(tmp_path / "environments").iterdir()] == []


def round_of(system, p50, rate):
    return Round(system, 2.0, (p50, p50), (10.0, 20.0), rate, 50_000_000, 1.5, 0.5, 0.25)


def test_systems_are_told_beside_bare_uvicorn_by_the_ratios_of_rounds():
    rounds = [round_of(BARE, 2.0, 400.0), round_of(SERFER, 3.0, 200.0), round_of(SERFER, 2.0, 360.0)]
    rounds += [round_of(BARE, 1.0, 450.0), round_of(NULL, 0.5, 4000.0)]
    shown = results([PEERS[0], PEERS[-3]], rounds, {}, ["note"])
    ours = dict(zip(shown.tables[0].head, shown.tables[0].body[1], strict=True))
    assert (ours["system"], ours["p50 ms at 1"], ours["x bare p50"]) == (SERFER, "2.50", "1.75 (1.50 to 2.00)")
    assert (ours["a second"], ours["x bare rate"]) == ("280", "0.65 (0.50 to 0.80)")
    assert (ours["MB"], ours["queries"]) == ("50", "4")
    assert shown.tables[1].body[1][-2:] == ("7%", "25%")
    assert "4,000 queries a second" in shown.notes[0]


@given(st.integers(1, 3000), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_interval_of_a_quantile_is_the_shortest_that_has_it_with_the_probability_that_it_says(count, share):
    low, high = quantile_interval(range(count, 0, -1), share)  # values from 1 on are their places
    assert low == 1 or binom.cdf(low - 1, count, share) <= 0.025 < binom.cdf(low, count, share)
    assert high == count or binom.sf(high - 1, count, share) <= 0.025 < binom.sf(high - 2, count, share)


def test_a_file_that_is_not_such_a_network_is_refused_with_what_it_has(tmp_path):
    (tmp_path / "text.onnx").write_text("no network")
    with pytest.raises(InputError, match="cannot be read as a network"):
        examples_of(tmp_path / "text.onnx")
    model = small_onnx()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "H"
    onnx.save(model, tmp_path / "sizes.onnx")
    with pytest.raises(InputError, match="of a fixed size"):
        examples_of(tmp_path / "sizes.onnx")


def bench(*words):
    return run("bench", "peers", *words).stdout


def test_an_unknown_peer_is_refused_with_those_that_there_are():
    with pytest.raises(UsageError, match=r"LitServe in batches, BentoML.*not 'flask'"):
        bench("--peer", "flask")


@pytest.mark.slow
def test_bare_uvicorn_a_function_and_ours_answer_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("serfer_bench.peers.command.write_onnx", lambda *given: onnx.save(small_onnx(), given[-1]))
    chosen = [word for name in (BARE, "Lambda handler", SERFER) for word in ("--peer", name)]
    options = ("--rounds", 1, "--queries", 40, "--alone", 10, "--at-once", 4, "--workers", 1, "--json")
    lines = [json.loads(line) for line in bench(*chosen, *options).splitlines()]
    if away := [line["left_out"] for line in lines if "cannot be installed" in line.get("left_out", "")]:
        pytest.skip(away[0])
    assert sorted(line["system"] for line in lines) == sorted([BARE, "Lambda handler", SERFER, NULL])
    assert [line.get("left_out") or len(line["together_ms"]) for line in lines] == [40] * 4
