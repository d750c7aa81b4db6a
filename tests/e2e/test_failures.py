"""The command line, where something is wrong: one clear line, a fitting exit code, nothing left behind."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import onnx
import pytest

import serfer
from serfer.core.plan import sealed
from serfer.local.servers.redis import RedisServer
from serfer.plan_directory import load_plan, write_plan
from tests.e2e.conftest import eventually, keys
from tests.e2e.small import give_nan, small_onnx

INTERRUPTED, TERMINATED = 130, 143


@pytest.fixture(scope="module")
def plan(lean):
    """Few workers: what goes wrong here does not depend on how many there are."""
    return lean


@pytest.fixture
def picture(examples):
    return examples / "rocket.jpg"


@pytest.fixture
def copy(plan, tmp_path):
    shutil.copytree(plan, tmp_path / "copy")
    return tmp_path / "copy"


class TestImages:
    @pytest.fixture
    def classify(self, serfer_here, plan):
        return lambda *names: serfer_here("classify", "--plan", plan, "--workers", "inprocess", "--json", "--", *names)

    def test_every_bad_image_has_its_line_and_spoils_no_good_one(self, classify, picture, tmp_path):
        (tmp_path / "empty.jpg").touch()
        (tmp_path / "cut.jpg").write_bytes(picture.read_bytes()[:5000])
        (tmp_path / "two\nlines.jpg").write_text("x")
        (tmp_path / "directory").mkdir()
        bad = ["none.jpg", "directory", "empty.jpg", "cut.jpg", "two\nlines.jpg"]
        result = classify(picture, *bad, picture)
        assert result.code == 3
        for line, name in zip(result.err.splitlines(), bad, strict=True):
            assert line.startswith(f"serfer: {name}".replace("\n", " "))
        first, *failed, last = map(json.loads, result.lines)
        assert [answer["images"] for answer in failed] == [[{"name": name, "predictions": []}] for name in bad]
        assert all(answer["error"] for answer in failed)
        assert first["images"][0]["predictions"] == last["images"][0]["predictions"] != []

    def test_one_over_the_limits_and_empty_standard_input(self, serfer_here, plan, picture):
        common = ("classify", "--plan", plan, "--workers", "inprocess")
        for variable, words in (("BYTES", "is larger than 1,000 bytes"), ("PIXELS", "has 640 x 427 pixels")):
            refused = serfer_here(*common, picture, **{f"SERFER_MAX_IMAGE_{variable}": "1000"})
            refused.complains(3, f"rocket.jpg {words}")
        serfer_here(*common, "-", stdin=b"").complains(3, "- is empty")


HERE = "classify rocket.jpg --plan PLAN --workers inprocess"
READING = (
    "map rocket.jpg --network small.onnx --out m",
    "classify small.onnx rocket.jpg",
    "run small.onnx rocket.jpg --out out",
    "serve small.onnx",
)
REFUSED = [
    ("classify", 2, "Missing argument '[NETWORK] IMAGE...'"),
    ("classify none.jpg --model alexnet", 3, "none.jpg does not exist"),
    ("classify broken.jpg --model alexnet", 3, "not an image of a known format"),
    ("classify - -", 2, "standard input can be read only once"),
    ("classify rocket.jpg --plan x --model alexnet", 2, "--plan or --model, not both"),
    ("classify rocket.jpg --model vgg99", 3, "unknown model 'vgg99' (did you mean vgg"),
    (f"{HERE} --store ftp://x:hush@y", 2, "no store is known for 'ftp://'"),
    (f"{HERE} --store redis:/:hush@x", 2, "no store is known for what has no scheme"),
    (f"{HERE} --store=", 2, "--store is empty"),
    (f"{HERE} --set object_store=bogus://hush", 2, "no store is known for 'bogus://'"),
    (f"{HERE} --top-k 0", 2, "--top-k"),
    (f"{HERE} --set deadline_ms=0", 2, "deadline_ms"),
    (f"{HERE} --trace -", 2, "--trace takes the path of a file"),
    (f"{HERE} --trace nowhere/out.json", 3, "'nowhere/out.json' cannot be written"),
    ("classify rocket.jpg --plan PLAN --store file:///proc/nowhere", 4, "/proc/nowhere"),
    ("classify small.onnx", 2, "small.onnx is a network: name images, too"),
    ("classify small.onnx other.onnx cat.png", 2, "small.onnx and other.onnx are several networks"),
    ("classify small.onnx cat.png --plan plan", 2, "small.onnx and plan are several networks"),
    ("classify timm:resnet18 small.onnx cat.png", 2, "timm:resnet18 and small.onnx are several networks"),
    ("classify small.onnx cat.png", 3, "cat.png does not exist"),
    ("classify cat.png --plan plan --size 32x32", 2, "timm:NAME or torchvision:NAME; a plan has its own"),
    ("classify cat.png --plan plan --random", 2, "random says where the weights of timm:NAME"),
    ("classify small.onnx rocket.jpg --size 32", 2, "write HEIGHTxWIDTH"),
    ("classify small.onnx rocket.jpg --size 99x99", 3, "fixed to 34 on axis 2, not 99, 34 on axis 3, not 99"),
    ("classify small.onnx rocket.jpg --stack serfer-dev", 2, "serfer deploy package plan"),
    ("split small.onnx --out out --size 3", 2, "'3' is not a size"),
    ("split small.onnx --out out --size 99999x99999", 2, "is too large: an image may have 268,435,456 values"),
    ("split small.onnx --out out --memory 5", 2, "memory must be 128 to 10240 MB, not 5"),
    ("split small.onnx --out out --set channels=5", 2, "channels says more about size: give both"),
    ("split small.onnx --out out --set cuts=relu1,,relu2", 2, "cuts 'relu1,,relu2' lacks a name"),
    ("split small.onnx --out out --set safety=-1", 2, "safety"),
    ("split small.onnx --out out --set resize_output=9", 2, "resize_output '9'"),
    ("split small.onnx --out out --set reduce=max", 2, "--reduce is argmax"),
    ("split small.onnx --out out --set gang=always --store s3", 2, "in s3: use --set gang=never"),
    ("split small.onnx --out out --whole --grids 2x2 --set max_tiles=2", 2, "leave out --grids, max_tiles"),
    ("split net.py:make --out out", 3, "net.py does not exist: give the Python file that has make()"),
    ("run rocket.jpg --plan nothing --out out", 3, "nothing is not a plan directory"),
    ("run rocket.jpg --plan PLAN --out broken.jpg", 3, "folder"),
    ("run rocket.jpg rocket.jpg --plan PLAN --out out", 2, "same files"),
    ("run rocket.jpg --plan PLAN --out out --format jpeg", 2, "npy, png or tiff"),
    ("run rocket.jpg --plan PLAN --out out --format png", 2, "png holds none of the outputs logits [7]"),
    ("run - - --plan PLAN --out out", 2, "standard input"),
    ("run rocket.jpg --plan PLAN", 2, "--out, the folder for outputs, or --keep"),
    ("run rocket.jpg --plan PLAN --out out --results file://HERE/registry", 2, "give --keep too"),
    ("run rocket.jpg --plan PLAN --keep --results file://HERE/registry --compare", 2, "--keep goes without"),
    ("run rocket.jpg --plan PLAN --keep --results file://HERE/registry --format png", 2, "--keep goes without"),
    ("run rocket.jpg --plan PLAN --workers inprocess --keep --results memory://", 2, "ends with this command"),
    ("result show ../00000000000000000000000000000 --results file://HERE/registry", 3, "32 hex digits"),
    *((f"{each} --workers lambda", 2, "workers are inprocess, local or aws, not 'lambda'") for each in READING),
    ("serve --stack demo", 2, "--stack demo: say which plan it serves: --plan DIR"),
    ("serve --drivers 2 --set engine=stepfunctions", 2, "engine=stepfunctions"),
    ("serve --drivers 2 --plan nowhere", 3, "nowhere"),
    ("serve --drivers 2 --plan PLAN --set drain_s=1", 2, "drain_s is for one driver"),
    ("serve --drivers 2 --plan PLAN --store memory://", 2, "--store memory://"),
    ("serve --drivers 2 --plan PLAN --keys HERE/keys.json", 2, "keys.json does not exist"),
    ("serve --drivers 2 --plan PLAN --set log_level=loud", 2, "log_level is debug, info, warning or error"),
    ("serve --drivers 2 --plan PLAN --set allow_host=http://a", 2, "'http://a'"),
    ("serve --drivers 2 --app faces", 2, "--registry"),
    ("serve --drivers 2 --registry HERE/registry", 4, "there is no registry in"),
    ("study profile --out /proc/nowhere/x.json", 3, "cannot be written"),
]


class TestUsage:
    @pytest.mark.parametrize(("words", "code", "message"), REFUSED)
    def test_wrong_use_is_refused_in_a_line_and_leaves_nothing(
        self, serfer_here, plan, picture, tmp_path, words, code, message
    ):
        (tmp_path / "small.onnx").symlink_to(plan.with_name("small.onnx"))
        (tmp_path / "rocket.jpg").symlink_to(picture)
        (tmp_path / "broken.jpg").write_bytes(b"no picture")
        told = serfer_here(*words.replace("PLAN", str(plan)).replace("HERE", str(tmp_path)).split())
        *progress, line = told.err.splitlines()
        assert all(step.startswith("serfer: reading ") and "--workers" not in words for step in progress)
        assert (told.code, line.startswith("serfer: "), message in line) == (code, True, True), told.err
        assert "hush" not in line
        assert {path.name for path in tmp_path.iterdir()} <= {"small.onnx", "rocket.jpg", "broken.jpg", "registry"}

    def test_a_split_onto_a_full_disk(self, start, tmp_path):
        (tmp_path / "out" / "plan").mkdir(parents=True)
        onnx.save(small_onnx(), tmp_path / "small.onnx")
        result = start("split", "small.onnx", "--out", tmp_path / "out" / "plan", largest_file=8).end()
        result.complains(4, f"{tmp_path}/out/plan cannot be written: File too large")
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["plan"]
        assert list((tmp_path / "out" / "plan").iterdir()) == []

    def test_a_limit_that_aws_does_not_allow_is_told(self, serfer_here, plan, tmp_path):
        result = serfer_here("split", plan.parent / "small.onnx", "--out", tmp_path / "out", "--set", "limit_mb=251")
        assert result.code == 0
        told = "serfer: with limit_mb=251, more than AWS allows, this plan runs on this machine only"
        assert told in result.err.splitlines()


class TestPlans:
    @pytest.fixture
    def classify(self, serfer_here, picture):
        return lambda directory: serfer_here("classify", "--plan", directory, picture, "--workers", "inprocess")

    def test_an_edited_plan(self, classify, serfer_here, copy):
        path = copy / "plan.json"
        path.write_text(path.read_text().replace('"label-1"', '"label-9"'))
        classify(copy).complains(3, "plan.json was edited: its digest does not match")
        serfer_here("explain", copy).complains(3, "plan.json was edited")

    def test_what_a_plan_would_make_a_terminal_do_is_shown_instead(self, classify, serfer_here, copy):
        plan = load_plan(copy)
        labels = tuple(f"\x1b[2J\x9b31mlabel-{number}\nnext" for number in range(len(plan.labels)))
        write_plan(sealed(replace(plan, model="evil\x1b]0;owned\x07", labels=labels)), copy)
        for result in (classify(copy), serfer_here("explain", copy)):
            assert (result.code, re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.out)) == (0, [])
            assert r"evil\x1b]0;owned\x07" in result.out
        assert r"\x1b[2J\x9b31mlabel-" in classify(copy).out

    def test_an_image_that_is_not_there_and_a_plan_that_takes_none(self, serfer_here, plan, picture, tmp_path):
        serfer.whole_plan(plan.parent / "small.onnx", out=tmp_path / "out")
        serfer_here("verify", tmp_path / "out", "--images", "nope.jpg").complains(3, "nope.jpg does not exist")
        serfer_here("verify", tmp_path / "out", "--images", picture).complains(3, "how an image becomes its input")

    def test_a_network_whose_answers_are_not_finite(self, serfer_here, copy, picture):
        words = "for image 0 is nan at [0], which is not a finite number"
        give_nan(copy)
        serfer_here("classify", "--plan", copy, picture, "--workers", "inprocess").complains(1, words)
        lines = serfer_here("classify", "--plan", copy, picture, "--workers", "inprocess", "--json")
        lines.complains(1, words)
        assert "NaN" not in lines.out
        assert [json.loads(line)["images"][0]["predictions"] for line in lines.lines] == [[]]
        serfer_here("verify", copy).complains(3, "the unsplit network's answer to random, seed 0 is not finite")


class TestUnavailable:
    @pytest.fixture
    def closed(self):
        """A port that nobody listens on: it stays bound, so that nobody can."""
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            yield holder.getsockname()[1]

    @pytest.mark.parametrize("workers", ["inprocess", "local"])
    def test_a_redis_that_is_not_there(self, serfer_here, lean, picture, closed, workers):
        url = f"redis://:hush@127.0.0.1:{closed}/0"
        result = serfer_here("classify", "--plan", lean, picture, "--store", url, "--workers", workers)
        assert "hush" not in result.complains(4, f"Redis at 127.0.0.1:{closed} cannot be reached", "--store")

    def test_a_port_that_is_taken(self, serfer_here, lean, picture):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            result = serfer_here("classify", "--plan", lean, picture, SERFER_LOCAL_PORT=str(port))
        result.complains(4, f"cannot listen at http://127.0.0.1:{port}", "in use: set SERFER_LOCAL_PORT")

    def test_a_store_that_goes_while_a_query_runs(self, start, lean, picture):
        with RedisServer() as server:
            command = start("classify", "--plan", lean, picture, "--store", server.url)
            worker = command.started("worker", 0)
            worker.send(signal.SIGSTOP)
            server.stop()
            worker.send(signal.SIGCONT)
            command.end().complains(4, "Redis at 127.0.0.1:", "cannot be reached")


class TestQueries:
    @pytest.fixture
    def query(self, start, lean, picture, redis):
        """A query whose later stages start when they are due, so that a stage's worker is one that runs its task."""
        given = ("classify", "--plan", lean, picture, "--store", redis, "--json")
        return lambda *more: start(*given, *more, SERFER_PREWARM="never")

    @pytest.mark.killed
    def test_a_worker_that_is_killed_costs_a_retry_and_no_more(self, query, serfer_here, lean, picture):
        command = query()
        command.started("worker", 1).send(signal.SIGKILL)
        result = command.end()
        assert (result.code, result.err) == (0, "")
        answer = json.loads(result.out)
        assert answer["retries"] == 1
        calm = serfer_here("classify", "--plan", lean, picture, "--json", "--workers", "inprocess")
        assert [one["label"] for one in answer["images"][0]["predictions"]] == [
            one["label"] for one in json.loads(calm.out)["images"][0]["predictions"]
        ]

    def test_workers_that_cannot_live_end_the_query(self, query):
        command = query()
        killed = set()

        def kill_all():
            for process in command.processes():
                if process.kind == "worker" and process.pid not in killed:
                    process.send(signal.SIGKILL)
                    killed.add(process.pid)
            return command.process.poll() is not None

        eventually(kill_all, "the command gives up")
        command.end().complains(1, "failed in code: stage 0", "signal: killed")

    def test_the_deadline(self, serfer_here, lean, picture, redis):
        result = serfer_here("classify", "--plan", lean, picture, "--store", redis, "--set", "deadline_ms=1")
        result.complains(1, "no answer by the deadline of 1 ms")

    @pytest.mark.killed
    @pytest.mark.parametrize(
        ("number", "code", "word"),
        [(signal.SIGINT, INTERRUPTED, "interrupted"), (signal.SIGTERM, TERMINATED, "terminated")],
    )
    def test_signal_during_a_query_deletes_its_keys(self, query, redis, number, code, word):
        command = query()
        command.started("worker", 1).send(signal.SIGSTOP)
        assert len(keys(redis)) == 2
        if number == signal.SIGINT:
            command.interrupt()
        else:
            command.process.terminate()
        command.end().complains(code, word)
        assert keys(redis) == []


IMPATIENT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from serfer.__main__ import main
main()
"""


# The whole network runs once more when its parts are there: that is when this one sends its process a signal.
SELF_INTERRUPTING = """
import os, signal, sys
from pathlib import Path

def interrupt(event, arguments):
    if event == "os.rename" and Path(arguments[1]) == Path({out!r}):
        print("half-written", *(path.name for path in Path(arguments[0]).glob("plan.json")), flush=True)
        os.kill(os.getpid(), {signal})

sys.addaudithook(interrupt)
"""


class TestInterrupted:
    def test_while_the_command_line_is_still_imported(self):
        run = subprocess.run([sys.executable, "-c", IMPATIENT], capture_output=True, text=True, check=False)
        assert (run.returncode, run.stderr) == (INTERRUPTED, "serfer: interrupted\n")

    def test_during_start_up(self, start, plan, picture):
        command = start("classify", "--plan", plan, *[picture] * 1000)  # it lasts until a busy machine looks at it
        command.started("redis")
        command.interrupt()
        command.end().complains(INTERRUPTED, "interrupted")

    @pytest.mark.killed
    def test_an_impatient_user_interrupts_twice(self, start, plan, picture):
        command = start("classify", "--plan", plan, picture)
        command.started("worker", 0).send(signal.SIGSTOP)
        command.interrupt()
        command.interrupt()
        command.end().complains(INTERRUPTED, "interrupted")

    def test_a_split_leaves_no_half_of_a_plan(self, start, plan, tmp_path):
        out = tmp_path / "out" / "plan"
        (tmp_path / "sitecustomize.py").write_text(SELF_INTERRUPTING.format(signal=int(signal.SIGTERM), out=str(out)))
        model = plan.with_name("small.onnx")
        result = start("split", model, "--size", "34x34", "--out", out, PYTHONPATH=str(tmp_path)).end()
        result.complains(TERMINATED, "terminated")
        assert result.out.split() == ["half-written", "plan.json"], "the signal came while the directory was filled"
        assert list((tmp_path / "out").iterdir()) == []

    @pytest.mark.killed
    def test_killed_outright_it_takes_workers_and_redis_along(self, start, plan, picture):
        command = start("classify", "--plan", plan, picture)
        command.started("redis")
        command.started("worker", 0)
        command.process.kill()
        command.process.communicate()
        eventually(lambda: command.processes() == [], "workers and redis end")


class TestOutput:
    @pytest.mark.parametrize("options", [[], pytest.param(["--json"], marks=pytest.mark.weekly)])
    def test_a_reader_that_has_enough_is_no_error(self, start, plan, picture, options):
        command = start("classify", "--plan", plan, *[picture] * 3, "--workers", "inprocess", *options)
        command.process.stdout.close()
        command.process.stdout = None
        command.process.stdin.close()
        command.process.stdin = None
        err = command.process.stderr.read()
        assert (command.process.wait(), err) == (0, b"")

    def test_a_full_disk_is_told_in_one_line(self, start):
        command = start("doctor", "--json", stdout="/dev/full")
        command.end().complains(4, "serfer: No space left on device: free some space, or write elsewhere")
