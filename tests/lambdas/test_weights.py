"""Weights that are fetched: the contract of their sources, and the workers that use them."""

import collections
import contextlib
import hashlib
import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from serfer.core.errors import PlanError, StoreError, StoreUnavailableError, UsageError
from serfer.core.plan import FETCHED, Artefact, sealed
from serfer.core.wire import WarmUp, decode_warmed, encode_warmed
from serfer.lambdas import model_stream, weights
from serfer.lambdas.artefacts import artefact_directory, functions_to_fetch
from serfer.lambdas.model_stream import streamed
from serfer.lambdas.sessions import SessionCache
from serfer.lambdas.weights import FileRanges, WeightSource, check_memory, open_ranges
from serfer.lambdas.worker import Worker
from serfer.plan_directory import load_plan, write_plan
from serfer.storage.memory import MemoryStore
from serfer.storage.s3.client import S3Client
from serfer.storage.s3.objects import S3Ranges
from serfer_bench.core.s3_server import S3Server
from tests.e2e.small import batch, put_weights_in, split_small
from tests.lambdas.started import start
from tests.lambdas.test_worker import run_all
from tests.storage.s3_stub import refused, stub

DATA = np.random.default_rng(3).bytes(100_001)
WEIGHTS = Artefact("stage-2/weights-1.bin", len(DATA), hashlib.sha256(DATA).hexdigest())


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(weights, "PART_BYTES", 4096)


@pytest.fixture(scope="module")
def s3_server():
    with S3Server() as server:
        yield server


@pytest.fixture(params=["file", "s3"])
def place(request, tmp_path, monkeypatch):
    """Return the URL of an empty directory, and a function that puts an object there."""
    if request.param == "file":
        return tmp_path.as_uri(), lambda name, data: (tmp_path / name).write_bytes(data)
    server = request.getfixturevalue("s3_server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{server.bucket}/{tmp_path.name}"
    return url, lambda name, data: put_object(url, f"{tmp_path.name}/{name}", data)


def put_object(url, name, data):
    ranges = S3Ranges(url)
    ranges._client.put(name, data, 0.0)
    ranges.close()


def fetch(url, artefact=WEIGHTS):
    waits = []
    source = WeightSource(open_ranges(url), waits.append)
    try:
        return bytes(source.fetch(artefact)), waits
    finally:
        source.close()


def test_weights_arrive_whole(place):
    url, put = place
    put(WEIGHTS.sha256, DATA)
    assert fetch(url) == (DATA, [])
    assert fetch(url, Artefact("stage-0/weights-0.bin", 0, hashlib.sha256(b"").hexdigest())) == (b"", [])


def test_missing_weights_are_named_with_their_place(place):
    with pytest.raises(PlanError, match=rf"weights-1\.bin at .*{WEIGHTS.sha256[:12]}.*not there; deploy the plan"):
        fetch(place[0])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (DATA[:-1], "cut short"),
        (DATA[:4096], "cut short"),
        (DATA[:50_000] + b"x" + DATA[50_001:], "another digest than in the plan"),
    ],
)
def test_other_weights_than_the_plans_are_refused(place, data, what):
    url, put = place
    put(WEIGHTS.sha256, data)
    with pytest.raises(PlanError, match=rf"weights-1\.bin at .*{what}.*; deploy the plan again"):
        fetch(url)


def test_a_bucket_that_is_gone_is_named(s3_server, monkeypatch):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreUnavailableError, match=r"weights-1\.bin .* s3://gone-bucket/.*SERFER_WEIGHTS") as caught:
        fetch("s3://gone-bucket/weights")
    assert "--store" not in str(caught.value)


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    """Return a function that serves answers as a bucket, and yields the URL of its weights and the requests."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "c0ffee" * 6)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    initialise = S3Client.__init__
    monkeypatch.setattr(S3Client, "__init__", lambda self, *given: initialise(self, *given[:3], lambda _: None))

    @contextlib.contextmanager
    def serve(answer):
        with stub(answer) as (address, seen):
            yield f"s3://bucket/p?endpoint={address}", seen

    return serve


def ranged(request):
    first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
    return 206, {"Content-Range": f"bytes {first}-{last}/{len(DATA)}"}, DATA[first : last + 1]


def test_a_bucket_that_does_not_answer_is_asked_again(endpoint):
    seen = collections.Counter()

    def answer(request):
        seen[request.headers["range"]] += 1
        return refused(503, "SlowDown") if seen[request.headers["range"]] <= 6 else ranged(request)

    with endpoint(answer) as (url, _):
        data, waits = fetch(url)
    assert data == DATA
    assert len(waits) == len(seen) == -(-len(DATA) // 4096)
    with endpoint(lambda _: refused(503, "SlowDown")) as (url, _), pytest.raises(StoreUnavailableError, match="SlowDo"):
        fetch(url)
    with pytest.raises(StoreUnavailableError, match="SERFER_WEIGHTS"):
        fetch("s3://bucket/p?endpoint=http://127.0.0.1:9")


def test_a_refusal_and_a_server_without_ranges_are_final(endpoint):
    with endpoint(lambda _: refused(403, "AccessDenied")) as (url, seen), pytest.raises(StoreError, match="s3:GetObje"):
        fetch(url)
    assert len(seen) < 40
    with endpoint(lambda _: (200, {}, DATA)) as (url, _), pytest.raises(StoreUnavailableError, match="not an S3 ser"):
        fetch(url)


@pytest.mark.hostile
@pytest.mark.parametrize(
    "url",
    [
        *("", "s3://x", "http://host/x", "file://host/x"),
        *("file:///x?bytes_per_s=0", "file:///x?rate=3", "file:///x?bytes_per_s=a"),
    ],
)
def test_other_and_malformed_urls_are_refused(url):
    with pytest.raises(UsageError, match="SERFER_WEIGHTS"):
        open_ranges(url)


def test_a_rate_holds_all_ranges_together(tmp_path):
    (tmp_path / WEIGHTS.sha256).write_bytes(DATA)
    started = time.perf_counter()
    data, _ = fetch(f"{tmp_path.as_uri()}?bytes_per_s=500000")
    assert data == DATA
    assert time.perf_counter() - started >= 0.2


def test_too_little_memory_is_refused_before_fetching():
    each = Artefact("stage-0/weights-0.bin", 200 << 20, "0" * 64)
    check_memory([], 128)
    check_memory([each], 248)
    with pytest.raises(PlanError, match=r"247 MB of memory are too small.*at least 248 MB.*--memory"):
        check_memory([each], 247)
    check_memory([each, each], 448)
    with pytest.raises(PlanError, match="--memory"):
        check_memory([each, each], 447)


class Recorded:
    """A source that records what is fetched, from a plan directory."""

    def __init__(self, directory):
        self.directory = directory
        self.fetched = []

    def fetch(self, artefact):
        self.fetched.append(artefact.path)
        return WeightSource(FileRanges(self.directory)).fetch(artefact)


@pytest.fixture(scope="module", params=["one tile", "tiles of two shapes"])
def any_fetched(request, tmp_path_factory):
    """A plan whose functions fetch their weights, and the directory of these."""
    first = {"one tile": (1, 1), "tiles of two shapes": (1, 2)}[request.param]
    return fetching_plan(tmp_path_factory.mktemp("fetched"), first)


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    """Such a plan of three stages of one tile."""
    return fetching_plan(tmp_path_factory.mktemp("fetched"), (1, 1))


def fetching_plan(home, first):
    """Split the small network; its small tensors are in graphs, so that weights without any get bytes of no use."""
    directory = put_weights_in(split_small(home, grids=[first, (1, 1), (1, 1)]), FETCHED)
    plan, stages = load_plan(directory), []
    (home / "weights").mkdir()
    for number, stage in enumerate(plan.stages):
        [function] = stage.functions
        data = (directory / function.weights.path).read_bytes() or bytes([number]) * 5000
        artefact = Artefact(function.weights.path, len(data), hashlib.sha256(data).hexdigest())
        (directory / artefact.path).write_bytes(data)
        (home / "weights" / artefact.sha256).write_bytes(data)
        stages.append(replace(stage, functions=(replace(function, weights=artefact),)))
    write_plan(sealed(replace(plan, stages=tuple(stages))), directory)
    return directory, home / "weights"


@pytest.mark.exact
def test_fetched_weights_give_the_same_bits_and_are_given_back_when_all_sessions_exist(any_fetched):
    directory, at = any_fetched
    plan, source = load_plan(directory), Recorded(at)
    worker = Worker(plan, directory, MemoryStore(), "here", 1, 5.0, source)
    packaged = Worker(plan, directory, MemoryStore(), "here", 1, 0.0)
    functions = [stage.functions[0] for stage in plan.stages]
    assert worker.load(functions) > 0
    assert source.fetched == [function.weights.path for function in functions]
    alone = [stage.tiles[0].graph for stage in plan.stages if len(stage.functions[0].graphs) == 1]
    assert [*worker._sessions._sessions] == alone
    reports, expected = run_all(worker, plan, batch(2)), run_all(packaged, plan, batch(2))
    assert bytes(reports[-1].output) == bytes(expected[-1].output)
    assert reports[0].init_ms > 5.0
    assert reports[-1].weight_loads == len(functions) == len(source.fetched)
    assert worker._sessions._fetched == {}
    assert 0 < reports[0].fetch_ms < reports[0].init_ms
    assert not any(one.fetch_ms for one in (*reports[1:], *expected))
    built = worker._sessions.built
    worker.load(functions)
    assert (len(source.fetched), worker._sessions.built) == (len(functions), built)  # nothing was left to do


@pytest.mark.exact
def test_weights_too_large_for_a_stream_give_the_same_bits(any_fetched, monkeypatch):
    directory, at = any_fetched
    plan = load_plan(directory)
    streams, answers = [], []
    monkeypatch.setattr(
        model_stream, "streamed", lambda *given, **named: streams.append(1) or streamed(*given, **named)
    )
    for most in (1 << 30, -1):
        monkeypatch.setattr(model_stream, "MOST_BYTES", most)
        worker = Worker(plan, directory, MemoryStore(), "here", 1, 5.0, WeightSource(FileRanges(at)))
        answers.append(bytes(run_all(worker, plan, batch(2))[-1].output))
        assert worker._sessions._fetched == {}
        assert len(streams) == sum(len(stage.functions[0].graphs) for stage in plan.stages)
    assert answers[0] == answers[1]


def test_weights_of_an_evicted_session_are_fetched_again(fetched):
    directory, at = fetched
    plan, source = load_plan(directory), Recorded(at)
    cache = SessionCache(directory, 1, most_bytes=1, source=source)
    for number in (1, 2, 1):
        stage = plan.stages[number]
        cache.get(stage, stage.tiles[0])
    assert source.fetched == [plan.stages[number].functions[0].weights.path for number in (1, 2, 1)]
    assert (cache.weight_loads, cache.built) == (3, 3)


def test_weights_arrive_while_the_session_before_is_built(fetched, monkeypatch):
    directory, at = fetched
    plan, source, both = load_plan(directory), Recorded(at), threading.Event()
    build, fetch_one = SessionCache._build, source.fetch

    def building(self, function, graph):
        assert function is plan.stages[2].functions[0] or both.wait(60)
        return build(self, function, graph)

    def fetching(artefact):
        if artefact.path.startswith("stage-2"):
            both.set()
        return fetch_one(artefact)

    monkeypatch.setattr(SessionCache, "_build", building)
    source.fetch = fetching
    SessionCache(directory, 1, source=source).load([plan.stages[number].functions[0] for number in (1, 2)])


def test_after_a_failure_nothing_is_half_loaded_and_a_later_attempt_fetches_the_rest(fetched, tmp_path):
    directory, at = fetched
    plan, source = load_plan(directory), Recorded(tmp_path)
    functions = [plan.stages[number].functions[0] for number in (0, 1)]
    shutil.copyfile(at / functions[0].weights.sha256, tmp_path / functions[0].weights.sha256)
    cache = SessionCache(directory, 1, source=source)
    with pytest.raises(PlanError, match="not there"):
        cache.load(functions)
    assert [*cache._sessions] == [functions[0].graphs[0].path]
    source.directory = at
    cache.load(functions)
    assert (cache.weight_loads, cache.built, cache._fetched) == (2, 2, {})


class TestEnvironment:
    """serfer.lambdas.bootstrap in the package of a function that fetches its weights."""

    @pytest.fixture
    def package(self, fetched, tmp_path):
        directory, _ = fetched
        plan = load_plan(directory)
        for path in ("plan.json", *(file.path for file in plan.packaged(1, 0))):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            shutil.copyfile(directory / path, tmp_path / path)
        return tmp_path

    @pytest.fixture
    def package_in_zip(self, tmp_path):
        directory = split_small(tmp_path / "split", grids=[(2, 1), (1, 1)])
        plan, package = load_plan(directory), tmp_path / "package"
        for path in ("plan.json", *(file.path for file in plan.packaged(0, 0))):
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(directory / path, package / path)
        return package

    def test_its_files_are_found_and_its_weights_are_those_to_fetch(self, fetched, package):
        plan = load_plan(package)
        assert artefact_directory(plan, package, []) == package
        assert functions_to_fetch(plan, package) == [plan.stages[1].functions[0]]
        assert functions_to_fetch(plan, fetched[0]) == []
        zipped = replace(plan, stages=tuple(replace(stage, weights_in="zip") for stage in plan.stages))
        with pytest.raises(PlanError, match="package and deploy the plan again"):
            artefact_directory(zipped, package, [])

    def test_it_fetches_at_init_where_that_fits(self, fetched, package):
        code = (
            "start = b._WORKER._start\n"
            "print(b._WORKER._sessions.built, start.init_ms > start.fetch_ms > 0, b._ENVIRONMENT._to_fetch)"
        )
        run = start(package, code, SERFER_WEIGHTS=fetched[1].as_uri())
        assert run.returncode == 0, run.stderr
        log, line = run.stdout.splitlines()
        assert '"weights fetched"' in log
        assert line == "1 True []"

    def test_a_provisioned_environment_is_warm_before_its_first_invocation(self, fetched, package):
        provisioned = {"AWS_LAMBDA_INITIALIZATION_TYPE": "provisioned-concurrency"}
        slow = "import serfer.core.costs.cold_starts as c; c.fetched_at_init = lambda *_: False\n"
        code = "print(b._WORKER._sessions.built, b._WORKER._start.init_ms, b._ENVIRONMENT._to_fetch)"
        run = start(package, code, before=slow, SERFER_WEIGHTS=fetched[1].as_uri(), **provisioned)
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines()[-1] == "1 0.0 []"

    def test_a_provisioned_environment_with_its_weights_in_a_zip_has_built_its_sessions(self, package_in_zip):
        code = "print(b._WORKER._sessions.built > 0, b._WORKER._start.init_ms)"
        run = start(package_in_zip, code, AWS_LAMBDA_INITIALIZATION_TYPE="provisioned-concurrency")
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines()[-1] == "True 0.0"
        run = start(package_in_zip, code)
        assert run.stdout.splitlines()[-1].startswith("False")

    def test_a_warm_up_reports_what_it_waited_for_weights(self, fetched):
        directory, at = fetched
        plan = load_plan(directory)
        worker = Worker(plan, directory, MemoryStore(), "here", 1, 5.0, WeightSource(FileRanges(at)))
        worker.load([plan.stages[1].functions[0]])
        first, later = (decode_warmed(encode_warmed(worker.warm(WarmUp(plan.digest, 1, 0, 0.0)))) for _ in range(2))
        assert 0 < first.fetch_ms < first.init_ms
        assert (later.fetch_ms, later.init_ms) == (0, 0)

    def test_it_fetches_in_the_first_invocation_else(self, fetched, package):
        code = (
            "import types; print(b._WORKER._sessions.built)\n"
            "try: b.handler({}, types.SimpleNamespace(aws_request_id='1'))\n"
            "except Exception as error: print(type(error).__name__)\n"
            "print(b._WORKER._sessions.built)"
        )
        slow = "import serfer.core.costs.cold_starts as c; c.fetched_at_init = lambda *_: False\n"
        quiet = {"SERFER_WEIGHTS": fetched[1].as_uri(), "POWERTOOLS_LOG_LEVEL": "CRITICAL"}
        run = start(package, code, before=slow, **quiet)
        assert run.stdout.split() == ["0", "InputError", "1"], run.stderr

    @pytest.mark.parametrize(
        ("variables", "said"),
        [
            ({}, "SERFER_WEIGHTS is not set"),
            ({"SERFER_WEIGHTS": "ftp://x"}, "is not s3://BUCKET/PREFIX"),
            ({"SERFER_WEIGHTS": "file:///nowhere"}, "stage-1/weights-0.bin at /nowhere/"),
            ({"SERFER_WEIGHTS": "file:///nowhere", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "40"}, "too small"),
        ],
    )
    def test_what_fails_for_good_fails_in_init(self, package, variables, said):
        run = start(package, **variables)
        assert run.returncode != 0
        assert said in run.stderr.splitlines()[-1]

    def test_a_bucket_that_does_not_answer_leaves_the_fetch_to_the_first_invocation(self, package):
        variables = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B", "AWS_DEFAULT_REGION": "us-east-1"}
        url = "s3://bucket/weights?endpoint=http://127.0.0.1:9"
        run = start(package, "print(len(b._ENVIRONMENT._to_fetch))", SERFER_WEIGHTS=url, **variables)
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines()[-1] == "1"
        assert "weights not fetched at init" in run.stdout
