"""The registry in S3: the contract on SeaweedFS, lost responses, servers without conditions."""

import itertools
import json

import pytest
from obstore.exceptions import GenericError

from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.registry import open_registry
from serfer.registry.opening import open_store
from serfer_bench.core.s3_server import S3Server
from tests.registry.store_contract import NAME, RegistryStoreContract

NUMBER = itertools.count()


class Faulty:
    """A client of obstore's whose puts are sent so many times, without some options, and fail in the end."""

    def __init__(self, objects, *, times=1, ignores=(), fails=True):
        self._objects, self._times, self._ignores, self._fails = objects, times, ignores, fails

    def __getattr__(self, name):
        return getattr(self._objects, name)

    def put(self, *args, **options):
        for _ in range(self._times):
            self._objects.put(*args, **{key: value for key, value in options.items() if key not in self._ignores})
        if self._fails:
            raise GenericError("Generic S3 error: the connection was closed")


class TestSeaweed(RegistryStoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        with S3Server() as running:
            yield running

    @pytest.fixture
    def url(self, server, monkeypatch):
        for name, value in (server.environment | {"AWS_EC2_METADATA_DISABLED": "true"}).items():
            monkeypatch.setenv(name, value)
        self._url = f"s3://{server.bucket}/r{next(NUMBER)}"
        return self._url

    def damage(self, digest, data):
        open_store(self._url, create=False).objects.put(f"artefacts/{digest}/data-000000000000", data)

    @pytest.mark.parametrize("size", [5 << 20, 12_000_001])
    def test_a_large_artefact_is_sent_in_parts(self, store, tmp_path, monkeypatch, size):
        monkeypatch.setattr("serfer.registry.store._PART_BYTES", 5 << 20)
        data = bytes(range(256)) * (size // 256 + 1)
        (tmp_path / "weights").write_bytes(data[:size])
        digest = store.put_artefact(tmp_path / "weights")
        store.fetch_artefact(digest, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data[:size]
        tag = store.objects.head(f"artefacts/{digest}/data-000000000000")["e_tag"].strip('"')
        assert tag.endswith("-3") == (size > 10 << 20)

    def test_a_file_that_changes_while_it_is_sent_is_refused_and_leaves_nothing(self, store, tmp_path, monkeypatch):
        path = tmp_path / "weights"
        path.write_bytes(b"a" * (3 << 20))
        folder = store._folder
        monkeypatch.setattr(store, "_folder", lambda name: path.write_bytes(b"b" * (3 << 20)) and folder(name))
        with pytest.raises(InputError, match="changed"):
            store.put_artefact(path)
        assert [meta for page in store.objects.list("artefacts") for meta in page] == []

    def test_a_write_whose_response_was_lost_is_recognised(self, store):
        sound = store.objects
        store.objects = Faulty(sound)
        first = store.compare_and_set(NAME, None, b"one")
        assert store.get(NAME).version == first
        second = store.compare_and_set(NAME, first, b"two")
        assert (store.get(NAME).value, store.get(NAME).version) == (b"two", second)
        store.objects = Faulty(sound, times=2)  # the client repeats it
        third = store.compare_and_set(NAME, second, b"three")
        assert (store.get(NAME).value, store.get(NAME).version) == (b"three", third)
        store.objects = Faulty(sound, times=0)
        with pytest.raises(UnavailableError):
            store.compare_and_set(NAME, third, b"four")
        assert store.get(NAME).value == b"three"

    def test_a_foreign_object_is_refused_by_name(self, store):
        store.objects.put(f"documents/{NAME}/000000000001", b"{}" * 50)
        with pytest.raises(InputError, match=NAME):
            store.get(NAME)

    def test_a_prefix_of_something_newer_is_refused(self, store, url):
        for data in (json.dumps({"serfer registry": 3}).encode(), b"hello"):
            store.objects.put("registry.json", data)
            with pytest.raises(UsageError, match="update SerFer"):
                open_registry(url)

    def test_a_prefix_beside_it_is_another_registry(self, store, server, url):
        store.compare_and_set(NAME, None, b"one")
        assert open_registry(f"{url}/inner").store.names("") == []
        assert open_registry(f"s3://{server.bucket}").store.get(NAME) is None

    @pytest.mark.usefixtures("url")
    def test_a_bucket_that_is_not_there_is_unavailable(self):
        with pytest.raises(UnavailableError, match="its bucket does not exist"):
            open_registry("s3://no-such-bucket/registry")

    def test_a_server_that_ignores_conditions_is_refused_and_nothing_is_left(self, url):
        opened = open_store(url, create=True)
        opened.objects = Faulty(opened.objects, ignores=("mode",), fails=False)
        with pytest.raises(UsageError, match="updates would be lost"):
            opened.open(create=True)
        assert [meta for page in opened.objects.list() for meta in page] == []


def test_a_server_that_does_not_answer_is_unavailable(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="s3://bucket/registry"):
        open_registry("s3://bucket/registry")
