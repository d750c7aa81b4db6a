"""A map beside a service under load: it pauses, it resumes, and no online query is lost."""

import json

import httpx
import pytest

from tests.e2e.conftest import PATIENCE, SERVED, eventually
from tests.e2e.load import Burst
from tests.e2e.test_serve import png
from tests.mapping.plans import HEIGHT, WIDTH, assert_equal, expected, make_map_plan, read
from tests.raster.files import pixels, write
from tests.support.http_stub import serving

WINDOWS = 20


@pytest.fixture
def service(start, single):
    command = start("serve", "--plan", single, *SERVED, SERFER_LOCAL_CONCURRENCY="1")
    url = command.said()["url"]
    assert httpx.post(f"{url}/v1/classify", files={"image": png()}, timeout=PATIENCE).status_code == 200
    yield url
    command.stop()


@pytest.mark.slow
def test_a_map_pauses_while_online_load_is_on_and_resumes_after_it(start, service, tmp_path):
    make_map_plan(tmp_path / "plan")
    image = write(tmp_path / "image.tif", pixels(HEIGHT, WIDTH))
    arguments = (image, "--plan", tmp_path / "plan", "--out", tmp_path / "result.tif", "--workers", "inprocess")
    with Burst(service, clients=4, pause_s=0.0) as clients:
        eventually(lambda: clients.mark() >= 100, "load", every=0.02)
        command = start("map", *arguments, "--yield-to", service, "--json", "--set", "concurrency=1")
        while b"paused: " not in (line := command.process.stderr.readline()):
            assert line, "it ends without a pause"
        parts = [*tmp_path.glob("result.tif.parts/c.*")]
        wanted = clients.mark() + 100
        eventually(lambda: clients.mark() >= wanted, "answers under load", every=0.02)
        assert len([*tmp_path.glob("result.tif.parts/c.*")]) <= len(parts) + 1  # what ran when it paused
        assert command.process.poll() is None
    assert {*clients.seen} == {"serverless"}
    report = json.loads(command.end().out)
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
        result = serfer_here(*classify, "--set", f"yield_to={service.url}")
    assert result.code == 0, result.err
    names = [json.loads(line)["images"][0]["name"] for line in result.lines]
    assert names == [str(folder / "a.png"), str(folder / "deep" / "b.png")]
    assert "paused: utilisation 50% of 127.0.0.1" in result.err
