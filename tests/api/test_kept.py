"""Results that are kept, over HTTP: owners, arrays, downloads that end early, and what is not a result."""

import hashlib
import io
import itertools
import secrets
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import zarr

import serfer
from serfer.api.admission import Admission
from serfer.api.auth.keys import add_key
from serfer.storage import open_store
from tests.api.kept import put_result
from tests.support.served import PATIENCE, served

RANDOM = np.random.default_rng(3)
SCORES = RANDOM.normal(size=(2, 5, 34, 30)).astype(np.float32)
CLASSES = RANDOM.integers(0, 200, (2, 1, 34, 30)).astype(np.int64)
OUTPUTS = {"scores": SCORES, "head/classes": CLASSES, "50% of \u00e4, ../x?y#z": CLASSES.astype(np.uint8)}
GONE = "no such result: it was never made, has expired, was deleted, or is another key's"
ABSENT = "0123456789abcdef" * 2


@pytest.fixture
def store(tmp_path):
    with open_store((tmp_path / "results").as_uri()) as store:
        yield store


@pytest.fixture
def serve(small_plan, tmp_path):
    with ExitStack() as opened:

        def start(keys=None, *, downloads=16, **settings):
            admission, results = Admission(4, 8, downloads=downloads), (tmp_path / "results").as_uri()
            serving = served({"small": small_plan}, admission=admission, keys=keys, results=results, **settings)
            return opened.enter_context(serving)

        yield start


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.json"
    return path, {name: {"X-API-Key": add_key(path, name, None)} for name in ("phone", "tablet")}


def owner(name):
    return hashlib.sha256(f"serfer result owner {name}".encode()).hexdigest()


def loaded(reply):
    assert reply.status_code == 200, reply.text
    assert reply.headers["Content-Length"] == str(len(reply.content))
    return np.load(io.BytesIO(reply.content))


def outputs_of(url, manifest, **options):
    reply = httpx.get(f"{url}/v2/results/{manifest.id}", timeout=PATIENCE, **options)
    assert reply.status_code == 200, reply.text
    return {output["name"]: output for output in reply.json()["outputs"]}


NAMES = ("scores", "head_classes", "50_of_.._x_y_z")  # of files
METHODS = ("GET", "HEAD")


def test_a_result_says_where_its_outputs_are_which_are_files_with_safe_names(serve, store):
    url, manifest = serve(), put_result(store, OUTPUTS)
    reply = httpx.get(f"{url}/v2/results/{manifest.id}")
    place = f"/v2/results/{manifest.id}"
    assert reply.json()["parameters"] == {
        "result": manifest.id,
        "result_location": place,
        "result_expires": int(manifest.expires),
    }
    assert reply.headers["Cache-Control"] == "no-store"
    found = outputs_of(url, manifest)
    assert [*found] == [*OUTPUTS]
    assert found["head/classes"]["datatype"] == "INT64"
    assert found["head/classes"]["shape"] == [2, 1, 34, 30]
    assert [output["parameters"]["result_zarr"] for output in found.values()] == [f"{place}/zarr/{n}" for n in range(3)]
    for (name, array), plain in zip(OUTPUTS.items(), NAMES, strict=True):
        assert found[name]["parameters"]["result_link"] == f"{place}/outputs/{quote(name, safe='')}"
        reply, head = (httpx.request(method, f"{url}{place}/outputs/{quote(name, safe='')}") for method in METHODS)
        assert reply.headers["Content-Type"] == "application/x-npy"
        assert reply.headers["Content-Disposition"] == f'attachment; filename="{manifest.id[:8]}-{plain}.npy"'
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert len(reply.content) == found[name]["parameters"]["result_bytes"]
        assert np.array_equal(loaded(reply), array)
        assert loaded(reply).dtype == array.dtype
        same = ("Content-Length", "Content-Type", "Content-Disposition", "Accept-Ranges")
        assert ([head.headers[name] for name in same], head.content) == ([reply.headers[name] for name in same], b"")


def test_a_result_that_is_deleted_is_gone_with_its_bytes(serve, store, tmp_path):
    url, manifest = serve(), put_result(store, OUTPUTS)
    assert httpx.delete(f"{url}/v2/results/{manifest.id}").status_code == 204
    for more in ("", "/outputs/scores", "/zarr/zarr.json", "/zarr/0/c/0/0/0/0"):
        reply = httpx.get(f"{url}/v2/results/{manifest.id}{more}")
        assert (reply.status_code, reply.json()) == (404, {"error": GONE})
    assert httpx.delete(f"{url}/v2/results/{manifest.id}").status_code == 404
    assert not [path for path in (tmp_path / "results").rglob("*") if "serfer:result" in path.name]


def test_what_is_no_result_is_not_found(serve):
    url = serve()
    ids = [ABSENT, ABSENT.upper(), "x", ABSENT[:-1], f"{ABSENT}0", "manifest", f"local:{ABSENT}", "%00", "*"]
    ids += ["..%2F..%2Fetc%2Fpasswd", f"{ABSENT[:-1]}%0A", "\u0661" * 32, "{" * 32, "a" * 5000]
    methods = [("GET", ""), ("DELETE", ""), ("GET", "/outputs/x"), ("HEAD", "/outputs/x"), ("GET", "/zarr/0/zarr.json")]
    with httpx.Client(base_url=url) as client:
        for result, (method, more) in itertools.product(ids, methods):
            assert client.request(method, f"/v2/results/{result}{more}").status_code == 404, result


def test_what_a_result_has_not_is_refused_by_name_and_a_chunk_that_is_gone_is_never_one(serve, store):
    url, manifest = serve(), put_result(store, OUTPUTS)
    for name in ("", "scores/", "SCORES", "%2e%2e%2fscores", "scores%00", "x" * 4000):
        reply = httpx.get(f"{url}/v2/results/{manifest.id}/outputs/{name}")
        assert reply.status_code == 404
        assert "there is 'scores', 'head/classes'" in reply.json()["error"]
        assert len(reply.content) < 500
    for more in ("?format=zip", "/outputs/scores?format=zip", "/zarr/zarr.json?expires=1"):
        assert httpx.get(f"{url}/v2/results/{manifest.id}{more}").status_code == 422
    store.delete([manifest.place.key("0/c/0/0/1/1")])
    for path in ("zarr/0/c/0/0/1/1", "outputs/scores"):
        assert httpx.get(f"{url}/v2/results/{manifest.id}/{path}").status_code == 503


def test_a_result_that_has_expired_is_gone(serve, store):
    url, manifest = serve(), put_result(store, OUTPUTS, ttl=50, age=51)
    assert httpx.get(f"{url}/v2/results/{manifest.id}").json() == {"error": GONE}


def test_zarr_reads_a_result_over_http(serve, store):
    url, manifest = serve(), put_result(store, OUTPUTS, grid=(2, 3))
    place = f"/v2/results/{manifest.id}/zarr"
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        group = client.get(f"{place}/zarr.json")
        assert (group.status_code, group.json()["attributes"]["serfer"]["id"]) == (200, manifest.id)
        assert "owner" not in group.text
        for number, values in enumerate(OUTPUTS.values()):
            array = zarr.open_array(f"{url}{place}/{number}", mode="r")
            assert array.dtype == values.dtype
            assert np.array_equal(array[:], values)
        chunk = client.get(f"{place}/0/c/0/0/1/2")
        assert (chunk.headers["Content-Type"], len(chunk.content)) == (
            "application/octet-stream",
            manifest.outputs[0].chunk_bytes,
        )
        wrong = ("", "0", "3/zarr.json", "0/c/0/0/2/0", "0/c/0/0/0/0/", "0/c/0/0/00/0", "0%2F..%2F1%2Fzarr.json", "%00")
        for path in wrong:
            reply = client.get(f"{place}/{path}")
            assert (reply.status_code, "error" in reply.json()) == (404, True)


def test_downloads_that_are_too_many_are_refused(serve, store, keys):
    path, known = keys
    url = serve(path, downloads=2)
    large = np.zeros((1, 8, 1024, 1024), np.float32)
    manifest = put_result(store, {"large": large}, owner=owner("phone"))
    place = f"{url}/v2/results/{manifest.id}/outputs/large"
    with httpx.Client(headers=known["phone"]) as client, client.stream("GET", place) as first:
        assert first.status_code == 200
        second = httpx.get(place, headers=known["phone"])
        assert (second.status_code, second.headers["Retry-After"]) == (429, "1")
        assert httpx.head(place, headers=known["phone"]).status_code == 200
        other = put_result(store, {"large": large[:, :1]}, owner=owner("tablet"))
        assert httpx.get(f"{url}/v2/results/{other.id}/outputs/large", headers=known["tablet"]).status_code == 200
    metrics = httpx.get(f"{url}/metrics", headers=known["phone"]).text
    assert 'serfer_result_bytes_total{direction="sent"}' in metrics


def test_where_responses_end_at_some_bytes_larger_outputs_have_no_file(serve, store):
    url = serve(streams=False, api_max_answer_bytes=20_000)
    manifest = put_result(store, OUTPUTS)
    found = outputs_of(url, manifest)
    assert ["result_link" in output["parameters"] for output in found.values()] == [False, True, True]
    place = f"{url}/v2/results/{manifest.id}/outputs"
    reply = httpx.get(f"{place}/scores")
    assert (reply.status_code, "chunks of its array" in reply.json()["error"]) == (422, True)
    assert httpx.head(f"{place}/scores").status_code == 422
    chunk = f"{url}/v2/results/{manifest.id}/zarr/{{}}/c/0/0/0/0"
    assert [httpx.get(chunk.format(number)).status_code for number in range(3)] == [200, 200, 200]
    assert np.array_equal(loaded(httpx.get(f"{place}/head%2Fclasses")), CLASSES)


def memory_kb():
    """Return this process's resident memory, most since it was reset."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1])


def test_a_large_result_takes_bounded_memory_to_send_and_to_receive(serve, store, tmp_path):
    large = np.frombuffer(secrets.token_bytes(1 << 20) * 100, "<f4").reshape(1, 25, 1024, 1024)
    large = np.nan_to_num(large, copy=True)
    digest, size = hashlib.sha256(large.tobytes()).hexdigest(), large.nbytes
    url, manifest = serve(), put_result(store, {"large": large}, grid=(4, 4))
    del large
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = memory_kb()
    with serfer.Client(url) as client:
        client.open_result(manifest.id).download("large", tmp_path / "large.npy")
    assert memory_kb() - before < 60_000  # of server and client together
    array = np.load(tmp_path / "large.npy", mmap_mode="r")
    assert (array.nbytes, hashlib.sha256(array.tobytes()).hexdigest()) == (size, digest)
    assert {path.name for path in tmp_path.iterdir()} == {"results", "large.npy"}
