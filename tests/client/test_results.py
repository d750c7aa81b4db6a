"""Results that the service keeps, by the client that blocks and the one for asyncio: each test runs with both."""

import asyncio
import io
import itertools
import json
import zlib

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from serfer import AsyncClient, Client
from serfer.client.arrays import ArrayForm, FileValues, MemoryValues, NpySink, place_part
from serfer.core.errors import (
    RequestRefusedError,
    ServiceDeadlineError,
    ServiceError,
    ServiceUnavailableError,
    UnavailableError,
    UsageError,
)
from tests.client.test_client import KEY, Service, Time, Waited, answer, problem

ID = "ab" * 16
SCORES = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
CLASSES = np.arange(2 * 4 * 5, dtype=np.int64).reshape(2, 4, 5) - 7
BATCH = np.zeros((2, 3, 4, 4), np.float32)
TYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "uint8": "UINT8", "bool": "BOOL"}


def npy(array):
    """Return the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def output(name, array, **parameters):
    return {"name": name, "datatype": TYPES[str(array.dtype)], "shape": [*array.shape], "parameters": parameters}


def document(**more):
    """Return what a service says of a result with two outputs."""
    said = {"result": ID, "result_location": f"/v2/results/{ID}", "result_expires": 1_700_003_600}
    outputs = [
        output("scores", SCORES, result_link=f"/v2/results/{ID}/outputs/scores?owner=me&expires=17&signature=x-_y"),
        output("head/classes", CLASSES, result_link=f"/v2/results/{ID}/outputs/head%2Fclasses"),
    ]
    return {"model_name": "dense", "model_version": "1", "parameters": said, "outputs": outputs, **more}


def file(array, **headers):
    return httpx.Response(200, content=npy(array), headers={"Content-Type": "application/x-npy", **headers})


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body whose connection breaks."""

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
    """A client, or an asynchronous one that is waited for: a result's outputs are read the same way."""

    def __init__(self, client, result):
        self.client = client
        self.id, self.expires = result.id, result.expires
        self._result = result if isinstance(client, Client) else Waited(result)
        self._blocks = isinstance(client, Client)

    def array(self, name):
        return np.asarray(self._result[name] if self._blocks else self._result.tensor(name))

    def download(self, name, path, **options):
        return self._result.download(name, path, **options)

    def delete(self):
        self._result.delete()


@pytest.fixture
def time():
    return Time()


@pytest.fixture(params=["sync", "async"])
def open_(request, time):
    """Return a result of a service that gives these answers after the first, and the service."""

    def make(*answers, first=None, **options):
        service = Service(time, answer(document=first or document()), *answers)
        chosen = {"transport": httpx.MockTransport(service), "clock": time.clock(), "api_key": KEY, **options}
        if request.param == "sync":
            client = Client("http://serfer.test/prod", sleep=time.wait, **chosen)
            return Both(client, client.infer(BATCH, model="dense", result="link")), service
        client = AsyncClient("http://serfer.test/prod", sleep=time.await_, **chosen)
        return Both(client, asyncio.run(client.infer(BATCH, model="dense", result="link"))), service

    return make


def test_a_link_is_asked_for_and_nothing_is_downloaded_before_it_is_wanted(open_):
    result, service = open_(file(SCORES))
    [request] = service.requests
    head = json.loads(request.content[: int(request.headers["Inference-Header-Content-Length"])])
    assert head["parameters"] == {"result": "link"}
    assert (result.id, result.expires) == (ID, 1_700_003_600)


def test_an_output_is_an_array_and_a_link_keeps_its_query(open_):
    result, service = open_(file(SCORES))
    array = result.array("scores")
    assert array.dtype == SCORES.dtype
    assert np.array_equal(array, SCORES)
    assert not array.flags.writeable
    request = service.requests[-1]
    assert request.url.path == f"/prod/v2/results/{ID}/outputs/scores"
    assert dict(request.url.params) == {"owner": "me", "expires": "17", "signature": "x-_y"}
    assert request.headers["X-API-Key"] == KEY


def test_a_download_is_a_file_that_numpy_reads(open_, tmp_path):
    result, service = open_(file(CLASSES))
    path = result.download("head/classes", tmp_path / "classes.npy")
    assert path == tmp_path / "classes.npy"
    assert np.array_equal(np.load(path, mmap_mode="r"), CLASSES)
    assert [*tmp_path.iterdir()] == [path]
    assert service.requests[-1].url.raw_path == f"/prod/v2/results/{ID}/outputs/head%2Fclasses".encode()


def test_a_download_takes_the_place_of_a_file_that_is_there(open_, tmp_path):
    (tmp_path / "x.npy").write_bytes(b"old and longer than nothing" * 100)
    result, _ = open_(file(SCORES))
    result.download("scores", tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), SCORES)


def test_a_download_is_written_where_no_event_loop_waits_for_the_disk(open_, tmp_path, monkeypatch):
    loops, place = [], FileValues.place

    def placed(values, offset, data):
        loops.append(asyncio._get_running_loop())
        place(values, offset, data)

    monkeypatch.setattr(FileValues, "place", placed)
    result, _ = open_(file(SCORES))
    result.download("scores", tmp_path / "x.npy")
    assert set(loops) == {None}


def test_a_download_that_breaks_begins_again(open_, tmp_path):
    result, service = open_(cut(npy(SCORES)[:333]), cut(npy(SCORES)[:40]), file(SCORES))
    result.download("scores", tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), SCORES)
    assert len(service.requests) == 4


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (cut(npy(SCORES)[:400]), ServiceUnavailableError),
        (problem(404, "no such result"), RequestRefusedError),
        (httpx.Response(200, content=npy(SCORES)[:-1]), ServiceError),
        (httpx.Response(200, content=npy(SCORES) + b"x"), ServiceError),
        (httpx.Response(200, content=npy(SCORES)[:100]), ServiceError),
        (httpx.Response(200, content=b""), ServiceError),
        (httpx.Response(200, content=b"<html>not an array</html>" * 100), ServiceError),
        (httpx.Response(200, content=npy(SCORES[:1])), ServiceError),
        (httpx.Response(200, content=npy(SCORES.astype(np.float64))), ServiceError),
        (httpx.Response(200, content=npy(np.asfortranarray(SCORES))), ServiceError),
        (httpx.Response(200, content=b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(100)), ServiceError),
        (httpx.Response(200, content=b"\x93NUMPY\x01\x00\x76\x00" + b"{" * 0x76 + bytes(480)), ServiceError),
    ],
)
def test_what_does_not_arrive_as_it_is_leaves_no_file(open_, tmp_path, reply, error):
    kept = tmp_path / "kept.npy"
    kept.write_bytes(b"kept")
    result, _ = open_(reply)
    with pytest.raises(error):
        result.download("scores", tmp_path / "new.npy")
    with pytest.raises(error):
        result.download("scores", kept)
    with pytest.raises(error):
        result.array("scores")
    assert [*tmp_path.iterdir()] == [kept]
    assert kept.read_bytes() == b"kept"


def test_a_place_that_cannot_be_written_is_named(open_, tmp_path):
    result, service = open_(file(SCORES))
    with pytest.raises(UnavailableError, match="nowhere"):
        result.download("scores", tmp_path / "nowhere" / "x.npy")
    assert len(service.requests) == 1


def test_an_output_that_there_is_not_is_refused_by_name(open_, tmp_path):
    result, _ = open_(file(SCORES))
    with pytest.raises(UsageError, match=r"'depth': there is 'scores', 'head/classes'"):
        result.download("depth", tmp_path / "x.npy")


def test_a_download_has_more_time_the_larger_it_is(open_, tmp_path):
    shape = [1, 100, 1000, 1000]  # 400 MB
    outputs = [{"name": "s", "datatype": "FP32", "shape": shape, "parameters": {"result_link": "/v2/x"}}]
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
        {"outputs": [output("scores", SCORES, result_link="https://elsewhere.test/steals-a-key")]},
        {"outputs": [output("scores", SCORES, result_link="//elsewhere.test/steals-a-key")]},
        {"outputs": [{**output("scores", SCORES), "shape": [1, -1]}]},
        {"outputs": [{**output("scores", SCORES), "datatype": "BYTES"}]},
    ],
)
def test_an_answer_that_is_no_result_is_named(open_, wrong):
    with pytest.raises(ServiceError, match="not what a SerFer service"):
        open_(first=document(**wrong))


def parts(array, grid, *, seed=7):
    """Return parts of an array, cut along its last two axes, as a service lists them, and the objects of each."""
    listed, objects = [], {}
    rows, columns = (np.array_split(np.arange(size), count) for size, count in zip(array.shape[-2:], grid, strict=True))
    for row in rows:
        for column in columns:
            data = np.ascontiguousarray(array[..., row[0] : row[-1] + 1, column[0] : column[-1] + 1])
            url = f"https://bucket.test/results/part-{len(listed)}?X-Amz-Signature=s"
            floats = data.astype("<f4").tobytes()
            objects[url] = b"before" + floats + zlib.crc32(floats, 7).to_bytes(4, "little") + b"after"
            listed.append(
                {
                    "url": url,
                    "offset": 6,
                    "bytes": len(floats),
                    "seed": seed,
                    "start": [0] * (array.ndim - 2) + [int(row[0]), int(column[0])],
                    "shape": [*data.shape],
                }
            )
    return listed, objects


def in_parts(array, name="scores"):
    return document(outputs=[output(name, array, result_parts=f"/v2/results/{ID}/parts/{name}")])


def listing(listed, layout=SCORES.shape):
    return answer(document={"name": "scores", "expires": 17, "layout": [*layout], "parts": listed})


def bucket(objects):
    """Return an answer to GETs of ranges."""

    def reply(request):
        first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        return httpx.Response(206, content=objects[str(request.url)][first : last + 1])

    return reply


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (4, 3)])
def test_parts_are_put_together_from_where_they_lie_without_the_key(open_, tmp_path, grid):
    listed, objects = parts(SCORES, grid)
    result, service = open_(listing(listed), bucket(objects), first=in_parts(SCORES))
    result.download("scores", tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), SCORES)
    elsewhere = [request for request in service.requests if request.url.host == "bucket.test"]
    assert len(elsewhere) == len(listed)
    for request in elsewhere:
        assert KEY not in str(request.headers)
        assert "cookie" not in request.headers
        assert request.url.params["X-Amz-Signature"] == "s"


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_parts_are_float32_whatever_the_type_and_layout_of_the_output(open_, dtype):
    classes = (np.arange(2 * 4 * 6).reshape(2, 1, 4, 6) % (2 if dtype is np.bool_ else 200)).astype(dtype)
    listed, objects = parts(classes, (2, 3))
    answers = (listing(listed, classes.shape), bucket(objects))
    result, _ = open_(*answers, first=in_parts(classes.reshape(2, 24)))
    array = result.array("scores")
    assert array.dtype == dtype
    assert np.array_equal(array, classes.reshape(2, 24))


@pytest.mark.parametrize("value", [np.nan, np.inf, 300.0, -1.0])
def test_values_that_the_type_cannot_hold_are_refused(open_, value):
    listed, objects = parts(np.full((1, 1, 2, 2), value, np.float32), (1, 1))
    first = in_parts(np.zeros((1, 2, 2), np.uint8))
    result, _ = open_(listing(listed, (1, 1, 2, 2)), bucket(objects), first=first)
    with pytest.raises(ServiceError, match="values that are not UINT8"):
        result.array("scores")


def test_links_to_parts_that_are_over_are_asked_for_again(open_):
    listed, objects = parts(SCORES, (1, 2))
    over = httpx.Response(403, content=b"<Error><Code>AccessDenied</Code></Error>")
    answers = (listing(listed), bucket(objects), over, listing(listed), bucket(objects))
    result, service = open_(*answers, first=in_parts(SCORES))
    assert np.array_equal(result.array("scores"), SCORES)
    assert len(service.requests) == 6


def test_an_altered_part_leaves_no_file(open_, tmp_path):
    listed, objects = parts(SCORES, (2, 2), seed=8)
    result, _ = open_(listing(listed), bucket(objects), first=in_parts(SCORES))
    with pytest.raises(ServiceError, match="cut short, or was altered"):
        result.download("scores", tmp_path / "x.npy")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "file:///etc/passwd"},
        {"start": [0, 0, 0, 4]},
        {"start": [0, 0, 0]},
        {"bytes": 4},
        {"offset": -1},
        {"seed": "x"},
        {"seed": 1 << 32},
        {"shape": [2, 3, 4, 500]},
    ],
)
def test_parts_that_cannot_be_are_refused(open_, wrong):
    listed, _ = parts(SCORES, (1, 2))
    result, service = open_(listing([{**listed[0], **wrong}]), first=in_parts(SCORES))
    with pytest.raises(ServiceError, match="no result that is kept"):
        result.array("scores")
    assert len(service.requests) == 2


def test_parts_that_leave_a_hole_are_refused(open_, tmp_path):
    listed, objects = parts(SCORES, (2, 2))
    result, _ = open_(listing(listed[1:]), bucket(objects), first=in_parts(SCORES))
    with pytest.raises(ServiceError, match="parts"):
        result.download("scores", tmp_path / "x.npy")
    assert not [*tmp_path.iterdir()]


def test_a_result_is_opened_by_its_id():
    service = Service(Time(), answer(document=document()), file(SCORES))
    with Client("http://serfer.test", transport=httpx.MockTransport(service)) as client:
        result = client.open_result(f"{ID}/../x")
        assert [*result] == ["scores", "head/classes"]
        assert service.requests[0].url.raw_path == f"/v2/results/{ID}%2F..%2Fx".encode()
        scores = result["scores"]
        assert (scores.name, scores.datatype, scores.shape, scores.nbytes) == ("scores", "FP32", (2, 3, 4, 5), 480)
        assert np.array_equal(np.asarray(scores), np.asarray(scores))
        assert len(service.requests) == 2  # what was downloaded is kept
        assert KEY not in repr(result)


def test_a_result_that_is_not_kept_in_time_says_so():
    service = Service(Time(), problem(504, "too late"))
    with (
        Client("http://serfer.test", transport=httpx.MockTransport(service)) as client,
        pytest.raises(ServiceDeadlineError),
    ):
        client.infer(BATCH, model="dense", result="link")


DTYPES = st.sampled_from([np.float32, np.int64, np.int32, np.uint8, np.bool_])


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(DTYPES, arrays.array_shapes(min_dims=1, max_dims=5, max_side=5)), st.lists(st.integers(0, 500)))
def test_a_file_in_any_pieces_is_the_array(array, cuts):
    form, data = ArrayForm("x", TYPES[str(array.dtype)], array.shape), npy(array)
    memory = MemoryValues(form)
    sink = NpySink(form, memory)
    sink.start()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for first, last in itertools.pairwise(places):
        sink.write(data[first:last])
    sink.end()
    assert memory.take() == array.tobytes()


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(DTYPES, arrays.array_shapes(min_dims=1, max_dims=5, max_side=5)), st.data())
def test_a_file_of_parts_is_the_array(array, data):
    form, file = ArrayForm("x", TYPES[str(array.dtype)], array.shape), io.BytesIO()
    file.name = "x"
    values = FileValues(form, file)
    values.start()
    bounds = [sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))}) for size in array.shape]
    for corner in np.ndindex(*(len(each) - 1 for each in bounds)):
        place = tuple(slice(each[i], each[i + 1]) for each, i in zip(bounds, corner, strict=True))
        part = np.ascontiguousarray(array[place])
        place_part(values, form, [each.start for each in place], part.shape, memoryview(part.tobytes()))
    file.seek(0)
    assert np.load(file).tobytes() == array.tobytes()
