"""Results that the service keeps, by the client that blocks and the one for asyncio: each test runs with both."""

import asyncio
import io
import json

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from serfer import Client
from serfer.client.arrays import ArrayForm, FileValues, place_chunk
from serfer.core.errors import RequestRefusedError, ServiceError, ServiceUnavailableError, UnavailableError, UsageError
from serfer.core.zarr import encode_chunk
from tests.client.test_client import KEY, Service, Time, Waited, answer, problem
from tests.results.stored import array_of, dense

ID = "ab" * 16
PLACE = f"/v2/results/{ID}/zarr"
SCORES = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
CLASSES = np.arange(2 * 4 * 5, dtype=np.int64).reshape(2, 4, 5) - 7
BATCH = np.zeros((2, 3, 4, 4), np.float32)
TYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "uint8": "UINT8", "bool": "BOOL"}


def output(name, array, **parameters):
    return {"name": name, "datatype": TYPES[str(array.dtype)], "shape": [*array.shape], "parameters": parameters}


def document(**more):
    said = {"result": ID, "result_location": f"/v2/results/{ID}", "result_expires": 1_700_003_600}
    outputs = [
        output("scores", SCORES, result_zarr=f"{PLACE}/0"),
        output("head/classes", CLASSES, result_zarr=f"{PLACE}/1"),
    ]
    return {"model_name": "dense", "model_version": "1", "parameters": said, "outputs": outputs, **more}


def chunked(name, values, grid):
    """Return the array of an output (N, C, H, W) or (N, H, W), and its chunks by their paths."""
    channels = 1 if values.ndim == 3 else values.shape[1]
    array = array_of(name, dense(channels, *values.shape[-2:], str(values.dtype), values.shape[1:]), len(values), grid)
    maps = values.reshape(len(values), channels, *values.shape[-2:])
    return array, {chunk.path: bytes(encode_chunk(array, maps[:, :, *chunk.rect.slices])) for chunk in array.chunks}


def chunk_of(values, grid=(1, 1)):
    return next(iter(chunked("scores", values, grid)[1].values()))


def served(values, grid=(2, 2), name="scores", bucket=None, **metadata):
    """Return what answers for an output, itself, or, for its chunks, with redirections to a bucket."""
    array, chunks = chunked(name, values, grid)

    def reply(request):
        path = request.url.path.partition("/zarr/")[2].partition("/")[2]
        if path == "zarr.json":
            return httpx.Response(200, json=array.metadata() | metadata)
        if bucket and request.url.host != bucket:
            return httpx.Response(307, headers={"Location": f"https://{bucket}/zarr/0/{path}?X-Amz-Signature=s"})
        return httpx.Response(200, content=chunks[path])

    return reply


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, data):
        self._data = data

    def __iter__(self):
        yield self._data
        raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")

    async def __aiter__(self):
        for chunk in self:
            yield chunk


def cut(data):
    return lambda _: httpx.Response(200, stream=Cut(data))


class Both:
    """A result of a client, or of an asynchronous one that is waited for: its outputs are read the same way."""

    def __init__(self, client, result):
        self.id, self.expires = result.id, result.expires
        self._blocks = isinstance(client, Client)
        self._result = result if self._blocks else Waited(result)

    def array(self, name):
        return np.asarray(self._result[name] if self._blocks else self._result.tensor(name))

    def download(self, name, path, **options):
        return self._result.download(name, path, **options)

    def delete(self):
        self._result.delete()


@pytest.fixture
def open_(open_client):
    """Return a result of a service that gives these answers after the first, and the service."""

    def make(*answers, first=None, **options):
        client, service = open_client(answer(document=first or document()), *answers, **options)
        return Both(client, client.infer(BATCH, model="dense", result="link")), service

    return make


def test_a_link_is_asked_for_and_nothing_is_downloaded_before_it_is_wanted(open_):
    result, service = open_(served(SCORES))
    [request] = service.requests
    head = json.loads(request.content[: int(request.headers["Inference-Header-Content-Length"])])
    assert head["parameters"] == {"result": "link"}
    assert (result.id, result.expires) == (ID, 1_700_003_600)


def test_an_output_is_an_array_of_its_chunks(open_):
    result, service = open_(served(SCORES, (4, 3)))
    array = result.array("scores")
    assert array.dtype == SCORES.dtype
    assert np.array_equal(array, SCORES)
    assert not array.flags.writeable
    _, first, *chunks = service.requests
    assert (first.url.path, len(chunks)) == (f"/prod{PLACE}/0/zarr.json", 12)
    assert chunks[-1].url.path == f"/prod{PLACE}/0/c/0/0/3/2"
    assert {request.headers["X-API-Key"] for request in chunks} == {KEY}


def test_a_download_is_a_file_that_numpy_reads_in_place_of_one_that_is_there(open_, tmp_path):
    (tmp_path / "classes.npy").write_bytes(b"old and longer than nothing" * 100)
    result, service = open_(served(CLASSES, name="head/classes"))
    path = result.download("head/classes", tmp_path / "classes.npy")
    assert path == tmp_path / "classes.npy"
    assert np.array_equal(np.load(path, mmap_mode="r"), CLASSES)
    assert [*tmp_path.iterdir()] == [path]
    assert service.requests[-1].url.path == f"/prod{PLACE}/1/c/0/0/1/1"


def test_a_download_is_written_where_no_event_loop_waits_for_the_disk(open_, tmp_path, monkeypatch):
    loops, place = [], FileValues.place

    def placed(values, offset, data):
        loops.append(asyncio._get_running_loop())
        place(values, offset, data)

    monkeypatch.setattr(FileValues, "place", placed)
    result, _ = open_(served(SCORES))
    result.download("scores", tmp_path / "x.npy")
    assert set(loops) == {None}


def metadata(values=SCORES, grid=(1, 1), **more):
    return answer(document=chunked("scores", values, grid)[0].metadata() | more)


def test_a_download_that_breaks_goes_on_with_the_chunk_that_broke(open_, tmp_path):
    first, all_ = metadata(grid=(2, 2)), served(SCORES)
    result, service = open_(first, all_, cut(chunk_of(SCORES)[:33]), cut(b""), all_)
    result.download("scores", tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), SCORES)
    assert [request.url.path[-3:] for request in service.requests[2:]] == ["0/0", "0/1", "0/1", "0/1", "1/0", "1/1"]


CHUNK = chunk_of(SCORES)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (cut(CHUNK[:400]), ServiceUnavailableError),
        (problem(404, "no such result"), RequestRefusedError),
        (httpx.Response(200, content=CHUNK[:-1]), ServiceError),
        (httpx.Response(200, content=CHUNK + b"x"), ServiceError),
        (httpx.Response(200, content=CHUNK[:100]), ServiceError),
        (httpx.Response(200, content=b""), ServiceError),
        (httpx.Response(200, content=b"<html>not a chunk</html>" * 100), ServiceError),
        (httpx.Response(200, content=bytes([CHUNK[0] ^ 1]) + CHUNK[1:]), ServiceError),
        (httpx.Response(307), ServiceError),
        (httpx.Response(307, headers={"Location": "file:///etc/passwd"}), ServiceError),
        (httpx.Response(302, headers={"Location": "https://elsewhere.test/"}), ServiceError),
    ],
)
def test_what_does_not_arrive_as_it_is_leaves_no_file(open_, tmp_path, reply, error):
    kept = tmp_path / "kept.npy"
    kept.write_bytes(b"kept")
    for get in (
        lambda result: result.download("scores", tmp_path / "new.npy"),
        lambda result: result.download("scores", kept),
        lambda result: result.array("scores"),
    ):
        result, _ = open_(metadata(), reply)
        with pytest.raises(error):
            get(result)
    assert [*tmp_path.iterdir()] == [kept]
    assert kept.read_bytes() == b"kept"


@pytest.mark.parametrize(
    "wrong",
    [
        {"data_type": "float64"},
        {"data_type": "int32"},
        {"shape": [1, 3, 4, 5]},
        {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
        {"attributes": {"serfer": {"output": "scores", "dims": [3, 4, 4], "edges": [[0, 4], [0, 4]]}}},
        {"attributes": {"serfer": {"output": "scores", "dims": [60], "edges": [[0, 4], [0, 5]]}}},
        {"zarr_format": 2},
    ],
)
def test_an_array_that_is_not_what_was_said_is_refused(open_, tmp_path, wrong):
    result, service = open_(served(SCORES, (1, 1), **wrong))
    with pytest.raises(ServiceError, match="not what a SerFer service"):
        result.download("scores", tmp_path / "x.npy")
    assert [*tmp_path.iterdir()] == []
    assert len(service.requests) == 2


def test_a_place_that_cannot_be_written_is_named(open_, tmp_path):
    result, service = open_(served(SCORES))
    with pytest.raises(UnavailableError, match="nowhere"):
        result.download("scores", tmp_path / "nowhere" / "x.npy")
    assert len(service.requests) == 1


def test_an_output_that_there_is_not_is_refused_by_name(open_, tmp_path):
    result, _ = open_(served(SCORES))
    with pytest.raises(UsageError, match=r"'depth': there is 'scores', 'head/classes'"):
        result.download("depth", tmp_path / "x.npy")


def test_a_download_has_more_time_the_larger_it_is(open_, tmp_path):
    shape = [1, 100, 1000, 1000]  # 400 MB
    outputs = [{"name": "s", "datatype": "FP32", "shape": shape, "parameters": {"result_zarr": "/v2/x"}}]
    result, service = open_(problem(503, Retry_After="300"), first=document(outputs=outputs), timeout_s=60.0)
    with pytest.raises(ServiceUnavailableError):
        result.array("s")
    assert len(service.requests) == 3
    with pytest.raises(ServiceUnavailableError):
        result.download("s", tmp_path / "x.npy", timeout_s=1.0)
    assert len(service.requests) == 4


def test_deleting_twice_is_no_error(open_):
    result, service = open_(httpx.Response(204), problem(404))
    result.delete()
    result.delete()
    assert [(each.method, each.url.path) for each in service.requests[1:]] == [("DELETE", f"/prod/v2/results/{ID}")] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"parameters": {}},
        {"parameters": None},
        {"outputs": {}},
        {"outputs": [{"name": "x"}]},
        {"outputs": [output("scores", SCORES, result_zarr="https://elsewhere.test/steals-a-key")]},
        {"outputs": [output("scores", SCORES, result_zarr="//elsewhere.test/steals-a-key")]},
        {"outputs": [output("scores", SCORES, result_link="/v2/results/x/outputs/scores")]},
        {"outputs": [{**output("scores", SCORES, result_zarr="/v2/x"), "shape": [1, -1]}]},
        {"outputs": [{**output("scores", SCORES, result_zarr="/v2/x"), "datatype": "BYTES"}]},
    ],
)
def test_an_answer_that_is_no_result_is_named(open_, wrong):
    with pytest.raises(ServiceError, match="not what a SerFer service"):
        open_(first=document(**wrong))


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (4, 3)])
def test_chunks_are_fetched_from_where_they_lie_without_the_key(open_, tmp_path, grid):
    result, service = open_(served(SCORES, grid, bucket="bucket.test"))
    result.download("scores", tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), SCORES)
    elsewhere = [request for request in service.requests if request.url.host == "bucket.test"]
    assert len(elsewhere) == grid[0] * grid[1]
    for request in elsewhere:
        assert KEY not in str(request.headers)
        assert "cookie" not in request.headers
        assert request.url.params["X-Amz-Signature"] == "s"


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_an_output_of_any_type_is_an_array_of_that(open_, dtype):
    classes = (np.arange(2 * 4 * 6).reshape(2, 4, 6) % (2 if dtype is np.bool_ else 200)).astype(dtype)
    first = document(outputs=[output("scores", classes, result_zarr=f"{PLACE}/0")])
    result, _ = open_(served(classes, (3, 4)), first=first)
    array = result.array("scores")
    assert array.dtype == dtype
    assert np.array_equal(array, classes)


def test_a_result_is_opened_by_its_id():
    service = Service(Time(), answer(document=document()), served(SCORES))
    with Client("http://serfer.test", transport=httpx.MockTransport(service)) as client:
        result = client.open_result(f"{ID}/../x")
        assert [*result] == ["scores", "head/classes"]
        assert service.requests[0].url.raw_path == f"/v2/results/{ID}%2F..%2Fx".encode()
        scores = result["scores"]
        assert (scores.name, scores.datatype, scores.shape, scores.nbytes) == ("scores", "FP32", (2, 3, 4, 5), 480)
        assert np.array_equal(np.asarray(scores), np.asarray(scores))
        assert len(service.requests) == 6  # what was downloaded is kept
        assert KEY not in repr(result)


DTYPES = st.sampled_from([np.float32, np.int64, np.int32, np.uint8, np.bool_])


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(DTYPES, arrays.array_shapes(min_dims=3, max_dims=4, max_side=7)), st.data())
def test_a_file_of_chunks_is_the_array(values, data):
    form, file = ArrayForm("x", TYPES[str(values.dtype)], values.shape), io.BytesIO()
    file.name = "x"
    whole = FileValues(form, file)
    whole.start()
    array, chunks = chunked("x", values, [data.draw(st.integers(1, size)) for size in values.shape[-2:]])
    for chunk in array.chunks:
        place_chunk(whole, array, chunk, memoryview(chunks[chunk.path])[:-4])
    file.seek(0)
    assert np.load(file).tobytes() == values.tobytes()
