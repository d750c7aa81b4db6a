"""Images in S3, as moto plays it, in the ways that users say where they are and who they are."""

import numpy as np
import pytest

from serfer.core.errors import ImageError, InputError, UnavailableError
from serfer.core.geometry import Rect, Span
from serfer.local.server import free_port
from serfer.raster import open_raster
from tests.moto_server import ACCESS, MotoServer
from tests.raster.files import pixels, write

TILES = {"tiled": True, "blockxsize": 64, "blockysize": 64, "compress": "deflate"}
WINDOW = Rect(Span(30, 170), Span(100, 290))


@pytest.fixture(scope="module")
def server():
    with MotoServer() as server:
        with server.client("s3") as client:
            client.create_bucket(Bucket="images")
        yield server


@pytest.fixture(autouse=True)
def access(monkeypatch, server):
    for name, value in {**ACCESS, "AWS_ENDPOINT_URL_S3": server.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def put(server, key, path, acl="private"):
    with server.client("s3") as client:
        client.put_object(Bucket="images", Key=key, Body=path.read_bytes(), ACL=acl)
    return f"s3://images/{key}"


@pytest.mark.parametrize(
    ("key", "profile"),
    [
        ("a.tif", TILES),
        ("folder/an odd name?+ü%20.tif", TILES),
        ("cog.tif", {"driver": "COG", "blocksize": 128}),
        ("a.png", {"driver": "PNG"}),
        ("no suffix", {"driver": "PNG"}),
        ("a.jpg", {"driver": "JPEG"}),
    ],
)
def test_windows_of_an_object_are_those_of_the_file(server, tmp_path, key, profile):
    path = write(tmp_path / "a", pixels(200, 300), **profile)
    with open_raster(put(server, key, path)) as source, open_raster(path) as local:
        np.testing.assert_array_equal(source.read(WINDOW), local.read(WINDOW))
        assert source.name == f"s3://images/{key}"
        assert {"bytes", "etag"} < source.identity.keys()


def test_region_and_endpoint_may_stand_in_the_url(server, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    values = pixels(200, 300)
    url = put(server, "a.tif", write(tmp_path / "a", values, **TILES))
    with open_raster(f"{url}?region=us-east-1&endpoint={server.url}") as source:
        np.testing.assert_array_equal(source.read(Rect.whole(200, 300)), values)


@pytest.mark.who_may
def test_a_public_object_needs_credentials_too(server, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    url = put(server, "public.tif", write(tmp_path / "a", pixels(200, 300), **TILES), "public-read")
    with pytest.raises(UnavailableError, match="no AWS credentials"):
        open_raster(url)


@pytest.mark.parametrize("url", ["s3://images/none.tif", "s3://no-such-bucket/a.tif"])
def test_object_that_is_not_there_is_named(url):
    with pytest.raises(InputError, match=f"{url} does not exist"):
        open_raster(url)


def test_an_object_that_may_not_be_read_is_named(server, tmp_path, monkeypatch):
    url = put(server, "a.tif", write(tmp_path / "a", pixels(200, 300), **TILES))
    try:
        for name, value in server.check_permissions().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(InputError, match=r"s3://images/a.tif cannot be read: access is denied"):
            open_raster(url)
    finally:
        server.check_nothing()


def test_a_server_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(UnavailableError, match="check AWS_ENDPOINT_URL_S3 and the network"):
        open_raster("s3://images/a.tif")


def test_an_object_that_is_no_image_or_empty_is_refused(server, tmp_path):
    (tmp_path / "text").write_text("not an image")
    with pytest.raises(ImageError, match=r"s3://images/text is not an image"):
        open_raster(put(server, "text", tmp_path / "text"))
    (tmp_path / "text").write_bytes(b"")
    with pytest.raises(ImageError, match=r"s3://images/text is empty"):
        open_raster(put(server, "text", tmp_path / "text"))


def test_a_request_that_fails_is_made_once_more(server, tmp_path, monkeypatch):
    values, fails = pixels(200, 300), [ImageError("HTTP 500")]
    url = put(server, "a.tif", write(tmp_path / "a", values, **TILES))

    def check(*_):
        if fails:
            raise fails.pop()

    monkeypatch.setattr("serfer.raster.reading.source.check_blocks", check)
    with open_raster(url) as source:
        np.testing.assert_array_equal(source.read(Rect.whole(200, 300)), values)
        fails += [ImageError("HTTP 500"), ImageError("HTTP 500")]
        with pytest.raises(ImageError):
            source.read(Rect.whole(200, 300))
        np.testing.assert_array_equal(source.read(Rect.whole(200, 300)), values)


def test_an_object_that_is_overwritten_or_deleted_is_noticed(server, tmp_path):
    url = put(server, "a.tif", write(tmp_path / "a", pixels(200, 300), **TILES))
    with open_raster(url) as source:
        source.check_unchanged()
        put(server, "a.tif", write(tmp_path / "b", pixels(200, 300, seed=1), **TILES))
        with pytest.raises(InputError, match="was changed while it was read"):
            source.check_unchanged()
    with open_raster(url) as source:
        np.testing.assert_array_equal(source.read(Rect.whole(200, 300)), pixels(200, 300, seed=1))
        with server.client("s3") as client:
            client.delete_object(Bucket="images", Key="a.tif")
        with pytest.raises(InputError, match="was changed while it was read"):
            source.check_unchanged()
