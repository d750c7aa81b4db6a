"""A map beside a service under load: it pauses, it resumes, and no online query is lost."""

import json
import subprocess
import sys
import threading

import httpx
import pytest

from tests.e2e.conftest import PATIENCE, eventually
from tests.e2e.load import Burst
from tests.e2e.test_serve import png
from tests.mapping.plans import make_map_plan
from tests.mapping.whole import HEIGHT, WIDTH, assert_equal, expected, read
from tests.offline.services import serving
from tests.raster.files import pixels, write

WINDOWS = 20
SLOW = """
import time
from serfer.raster import ResultParts
put = ResultParts.put
def slow(self, number, values):
    put(self, number, values)
    time.sleep(0.5)
ResultParts.put = slow
import serfer.offline.gate
serfer.offline.gate.PERIOD_S = 0.2
from serfer.__main__ import main
main()
"""


class Map:
    """A map as a process, half a second for each window, one at a time, which looks at the load every 0.2 s."""

    def __init__(self, *arguments, cwd):
        command = [sys.executable, "-c", SLOW, "map", *map(str, arguments), "--json", "--set", "concurrency=1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
        self.parts, self.said = cwd / "result.tif.parts", []
        self._listening = threading.Thread(target=lambda: self.said.extend(self._lines()))
        self._listening.start()

    def _lines(self):
        for line in self.process.stderr:
            self.said.append(line)
        return ()

    @property
    def done(self):
        return len([*self.parts.glob("c.*")])

    def alive(self, condition, what):
        def look():
            assert self.process.poll() is None, self.said
            return condition()

        eventually(look, what, every=0.02)

    def paused(self):
        return any("paused: " in line for line in self.said)

    def close(self):
        self.process.kill()
        self.process.wait()
        self._listening.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def end(self):
        out = self.process.stdout.read()
        assert self.process.wait(PATIENCE) == 0, self.said
        self._listening.join()
        return json.loads(out)


@pytest.fixture
def service(start, single):
    quietly = ("--set", "log_level=error")  # nobody reads its log, and a full pipe would stop it
    arguments = ("--plan", single, "--port", "0", "--json", "--set", "drain_s=0", *quietly)
    command = start("serve", *arguments, SERFER_LOCAL_CONCURRENCY="1")
    url = command.said()["url"]
    assert httpx.post(f"{url}/v1/classify", files={"image": png()}, timeout=PATIENCE).status_code == 200
    yield url
    command.interrupt()
    command.end()


@pytest.fixture
def mapped(service, tmp_path):
    make_map_plan(tmp_path / "plan")
    image = write(tmp_path / "image.tif", pixels(HEIGHT, WIDTH))
    arguments = (image, "--plan", tmp_path / "plan", "--out", tmp_path / "result.tif", "--workers", "inprocess")
    work = Map(*arguments, "--yield-to", service, cwd=tmp_path)
    yield work
    work.close()


@pytest.mark.slow
def test_a_map_pauses_while_online_load_is_on_and_resumes_after_it(service, mapped, tmp_path):
    mapped.alive(lambda: mapped.done >= 2, "windows beside an idle service")
    with Burst(service, clients=4, pause_s=0.0) as clients:
        mapped.alive(mapped.paused, "it pauses")
        done, wanted = mapped.done, clients.mark() + 100
        eventually(lambda: clients.mark() >= wanted, "answers under load", every=0.02)
        assert mapped.done <= done + 1  # what ran when it paused
        assert mapped.done < WINDOWS
    assert {*clients.seen} == {"serverless"}
    report = mapped.end()
    assert (report["computed"], report["failures"]) == (WINDOWS, [])
    assert report["paused_s"] > 0
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))


@pytest.fixture
def folder(tmp_path):
    """Two images and what is none, in a folder and one within."""
    images = tmp_path / "images"
    (images / "deep").mkdir(parents=True)
    (images / "a.png").write_bytes(png(seed=0))
    (images / "deep" / "b.png").write_bytes(png(seed=1))
    (images / "notes.txt").write_text("not an image")
    return images


def load(share):
    return (200, {}, json.dumps({"utilisation": share, "throttled": 0}).encode())


def test_a_folder_is_classified_beside_a_service(serfer_here, single, folder, monkeypatch):
    monkeypatch.setattr("serfer.offline.gate.PERIOD_S", 0.01)
    classify = ("classify", folder, "--plan", single, "--workers", "inprocess", "--json")
    with serving() as service:
        service.replies = [*[load(0.5)] * 5, load(0.1)]
        result = serfer_here(*classify, "--yield-to", service.url)
    assert result.code == 0, result.err
    names = [json.loads(line)["images"][0]["name"] for line in result.lines]
    assert names == [str(folder / "a.png"), str(folder / "deep" / "b.png")]
    assert "paused: utilisation 50% of 127.0.0.1" in result.err
