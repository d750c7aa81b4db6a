import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from serfer.local.servers.redis import RedisServer
from serfer.pipeline.event_loop import LoopThread
from serfer.plan_directory import load_plan
from serfer.settings import Settings, access_setting
from serfer.storage import open_store
from serfer.wiring.local import local_service, start_service
from serfer_bench.core.redis_cluster import RedisCluster
from serfer_bench.core.s3_server import S3Server
from tests.caches import new_cache
from tests.e2e.dense import split_dense
from tests.e2e.small import split_small

SERFER = str(Path(sys.executable).with_name("serfer"))
SERVED = ("--port", "0", "--json", "--set", "drain_s=0", "--set", "log_level=error")  # a full pipe would stop a server
PATIENCE = 180.0  # s until a test that waits for another process gives up; an empty cache on a busy machine takes 70


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return new_cache(tmp_path_factory)


@pytest.fixture(scope="session")
def settings(cache):
    return Settings(cache_dir=cache)


@pytest.fixture(scope="session")
def plan(tmp_path_factory):
    """Four tiles, four tiles, one."""
    return split_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def lean(tmp_path_factory):
    """Two tiles and one: three cold starts make a query."""
    return split_small(tmp_path_factory.mktemp("lean"), grids=[(1, 2), (1, 1)])


@pytest.fixture(scope="session")
def single(tmp_path_factory):
    """One tile: a cold start makes a query."""
    return split_small(tmp_path_factory.mktemp("single"), grids=[(1, 1)])


@pytest.fixture(scope="session")
def _redis():
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def s3():
    with S3Server() as server:
        yield server


@pytest.fixture(scope="module")
def cluster():
    with RedisCluster() as servers:
        yield servers


@pytest.fixture(scope="session")
def dense(tmp_path_factory):
    return split_dense(tmp_path_factory.mktemp("dense"))


@pytest.fixture
def redis(_redis):
    """The URL of a Redis server of the tests' own; every test must leave it empty, but for what expires in a second."""
    yield _redis.url
    deadline = time.monotonic() + 3.0  # the last driver that leaves a record has it expire
    while keys(_redis.url) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert keys(_redis.url) == []


@pytest.fixture
def url_of(request, tmp_path, monkeypatch):
    """Return the URL of a store of a kind, of the tests' own; None for a pipeline's own."""

    def find(kind):
        if kind == "s3":
            for name, value in request.getfixturevalue("s3").environment.items():
                monkeypatch.setenv(name, value)
        if kind in ("s3", "cluster"):
            return request.getfixturevalue(kind).url
        if kind == "redis":
            return request.getfixturevalue("redis")
        return {"default": None, "memory": "memory://", "file": f"file://{tmp_path / 'store'}"}[kind]

    return find


@pytest.fixture
def share(settings, redis):
    """Start a local Lambda service with the functions of plan directories; return it and its clients' settings."""
    with ExitStack() as running:

        def start(*directories, limits=settings, **more):
            loop = LoopThread()
            running.callback(loop.close)
            service = local_service([(load_plan(path), path) for path in directories], redis, limits, **more)
            loop.wait(start_service(service))
            running.callback(lambda: loop.wait(service.stop()))
            access = {"local_url": service.url, "local_access": access_setting(service.access)}
            return service, settings.model_copy(update=access)

        yield start


def keys(url):
    with open_store(url) as store:
        return store.execute([("KEYS", "*")])[0]


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it: a worker of a function of `stage`, the embedded store, what serves, another part."""

    pid: int
    kind: str
    stage: int | None = None

    def send(self, number):
        with suppress(ProcessLookupError):  # it may have ended since it was seen
            os.kill(self.pid, number)


def pids():
    return frozenset(entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit())


def eventually(condition, what, every=0.01, patience=PATIENCE):
    """Wait, for so long at most, until another process has made `condition()` true, and return what it gives.

    It is looked at every so many seconds: less often where a look is a request.
    """
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(every)
    return value


@dataclass
class Command:
    process: subprocess.Popen
    places: tuple[Path, ...]
    cache: Path
    older: frozenset[str]  # what runs for others: looking at all of it takes milliseconds
    cached: frozenset[str]  # what was in the cache: a command that a failed test killed may have left something

    @property
    def pid(self):
        return self.process.pid

    def processes(self):
        found = []
        for pid in pids() - self.older - {str(self.pid)}:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if any(word.endswith(b"/bootstrap.py") for word in words) and str(self.pid).encode() in words:
                    name = Path(f"/proc/{pid}/cwd").readlink().name
                    found.append(Process(int(pid), "worker", int(name.split("-")[-3])))
                elif self._inherited(pid):
                    serves = "serving" if b"serfer.cli.started_process" in words else "part"
                    found.append(Process(int(pid), "redis" if b"/valkey-server" in words[0] else serves))
        return found

    def _inherited(self, pid):
        """Return whether a process has the command's environment, or writes into a temporary file of the command's.

        The store writes its title over its environment when it has started, and its output goes to such a file.
        """
        if f"TESTED_SERFER={self.pid}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
        return Path(f"/proc/{pid}/fd/1").readlink().parent == self.places[0]

    def started(self, kind, stage=None):
        def look():
            assert self.process.poll() is None, self.process.communicate()
            return next((one for one in self.processes() if (one.kind, one.stage) == (kind, stage)), None)

        return eventually(look, f"{kind} {stage} of the command")

    def said(self):
        """Wait for a line of JSON, which is what a server says of itself once it serves, and return its value."""
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        return json.loads(line)

    def interrupt(self, number=signal.SIGINT):
        """Do what a terminal does: signal the whole process group."""
        os.killpg(self.pid, number)

    def stop(self, number=signal.SIGTERM):
        """Signal the process group of a server, which has to end well, and return its Result."""
        self.interrupt(number)
        result = self.end()
        assert result.code == 0, result.err
        return result

    def end(self, data=None):
        """Wait for the command's end and return a Result; nothing that it started may be left then."""
        try:
            out, err = (text.decode() for text in self.process.communicate(data, timeout=PATIENCE))
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # upon which it says where its threads are
            pytest.fail(f"the command does not end: {self.process.communicate()[1].decode()}")
        result = Result(self.process.returncode, out, err)
        ours = [line for line in err.splitlines() if not re.match(r'serfer-|.*"event": "function"', line)]
        assert "Traceback" not in "\n".join(ours), err
        assert self.processes() == [], err
        assert [path for place in self.places for path in place.iterdir()] == []
        left = {path.name for path in self.cache.iterdir()} - self.cached
        known = {".serfer-cache", "plans", "functions", "dependencies", "runtime", "weights", "results", "variants"}
        assert left <= known | {"registrations"}
        assert [path for path in self.cache.glob("*/.*") if not path.name.endswith((".lock", ".serfer-cache"))] == []
        return result


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def lines(self):
        return self.out.splitlines()

    def complains(self, code, *words):
        """Check the exit code and the one line on standard error, and return that line."""
        assert (self.code, self.err.count("\n")) == (code, 1), f"exit code {self.code}: {self.err}"
        assert self.err.startswith("serfer: ")
        for word in words:
            assert word in self.err
        return self.err


@contextmanager
def starting(cache, directory):
    """Start `serfer` with arguments in a directory; whatever a test does, it is gone at the end."""
    running = []
    temporary, home = directory / "tmp", directory / "home"
    temporary.mkdir()
    home.mkdir()

    def launch(*arguments, stdout="", largest_file="unlimited", **variables):
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SERFER_")},
            "SERFER_CACHE_DIR": str(cache),
            "TMPDIR": str(temporary),
            "COLUMNS": "200",
            "HOME": str(home),
            "PYTHONFAULTHANDLER": "1",
            **variables,
        }
        older = pids()
        cached = frozenset(path.name for path in cache.iterdir()) if cache.is_dir() else frozenset()
        # The process id is known only to the process itself, so a shell puts it into the environment.
        process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                f'ulimit -f {largest_file}; TESTED_SERFER=$$ exec "$@" {stdout and ">" + stdout}',  # in 512 bytes
                "sh",
                SERFER,
                *map(str, arguments),
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=directory,
        )
        command = Command(process, (temporary, home), cache, older, cached)
        running.append(command)
        return command

    try:
        yield launch
    finally:
        for command in running:
            command.process.kill()
            command.process.communicate()


@pytest.fixture
def start(cache, tmp_path):
    """Start `serfer` with arguments; whatever a test does, it is gone at the test's end."""
    with starting(cache, tmp_path) as launch:
        yield launch


@pytest.fixture
def serfer_(start):
    def run(*arguments, stdin=None, **variables):
        return start(*arguments, **variables).end(stdin)

    return run


@pytest.fixture
def serfer_here(cache, tmp_path, monkeypatch, capfd):
    """Run `serfer` to its end in this process, which spares the imports; it must end what it starts.

    With `own_service` a Lambda service of the test's own runs in this process too, and may start workers meanwhile.
    """
    for name in [name for name in os.environ if name.startswith("SERFER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SERFER_CACHE_DIR", str(cache))
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin=b"", own_service=False, **variables):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            capfd.readouterr()
            before = psutil.Process().children()
            code = _exit_code(app, [str(argument) for argument in arguments], _Interrupt())
        assert own_service or psutil.Process().children() == before
        return Result(code, *capfd.readouterr())

    return run


@contextmanager
def stopped(process):
    process.send(signal.SIGSTOP)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send(signal.SIGCONT)


@pytest.fixture(scope="session")
def examples():
    return Path(__file__).parents[2] / "examples" / "images"
