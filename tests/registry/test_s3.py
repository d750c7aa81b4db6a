"""The registry in S3: the contract on SeaweedFS and on moto, buckets without versions, servers without conditions."""

import itertools
import json
from contextlib import contextmanager

import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.session import Session

from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.registry import open_registry, s3
from serfer.registry.s3 import S3Store
from serfer_bench.core.s3_server import S3Server
from tests.moto_server import ACCESS, MotoServer
from tests.registry.records import application, network
from tests.registry.store_contract import NAME, RegistryStoreContract

NUMBER = itertools.count()


class Server:
    """A running S3 server's bucket, which keeps versions."""

    def __init__(self, environment, bucket):
        self.environment, self.bucket = environment, bucket

    @contextmanager
    def client(self):
        session = Session()
        session.set_credentials(self.environment["AWS_ACCESS_KEY_ID"], self.environment["AWS_SECRET_ACCESS_KEY"])
        client = session.create_client(
            "s3", region_name="us-east-1", endpoint_url=self.environment["AWS_ENDPOINT_URL_S3"]
        )
        try:
            yield client
        finally:
            client.close()


def versioned(client, bucket):
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})


class S3Contract(RegistryStoreContract):
    @pytest.fixture(autouse=True)
    def environment(self, server, monkeypatch):
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    @pytest.fixture
    def below(self):
        return f"r{next(NUMBER)}/"

    @pytest.fixture
    def open_store(self, server, below):
        self._server, self._below = server, below
        return lambda: S3Store(server.bucket, below)

    def damage(self, digest, data):
        with self._server.client() as client:
            client.put_object(Bucket=self._server.bucket, Key=f"{self._below}artefacts/{digest}", Body=data)

    @pytest.mark.parametrize("size", [5 << 20, 12_000_001])
    def test_a_large_artefact_is_sent_in_parts(self, store, tmp_path, size):
        store.part_bytes = 5 << 20
        data = bytes(range(256)) * (size // 256 + 1)
        (tmp_path / "weights").write_bytes(data[:size])
        digest = store.put_artefact(tmp_path / "weights")
        store.fetch_artefact(digest, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data[:size]
        parts = store._client.head_object(Bucket=store._bucket, Key=store._artefact(digest))["ETag"].strip('"')
        assert parts.endswith("-3") == (size > 10 << 20)

    def test_a_file_that_changes_while_it_is_sent_is_refused_and_leaves_nothing(self, store, tmp_path):
        store.part_bytes = 5 << 20
        path = tmp_path / "weights"
        path.write_bytes(b"a" * (12 << 20))
        create = store._client.create_multipart_upload

        def change(**parameters):
            path.write_bytes(b"b" * (12 << 20))
            return create(**parameters)

        store._client.create_multipart_upload = change
        with pytest.raises(InputError, match="changed"):
            store.put_artefact(path)
        assert list(store.artefacts()) == []
        assert store._client.list_multipart_uploads(Bucket=store._bucket).get("Uploads", []) == []

    def test_a_write_whose_response_was_lost_is_recognised(self, store):
        put = store._client.put_object

        def lost(**parameters):
            put(**parameters)
            raise ReadTimeoutError(endpoint_url="http://s3")

        store._client.put_object = lost
        first = store.compare_and_set(NAME, None, b"one")
        assert store.read(NAME).version == first
        second = store.compare_and_set(NAME, first, b"two")
        assert (store.read(NAME).data, store.read(NAME).version) == (b"two", second)

        def never_sent(**_parameters):
            raise ReadTimeoutError(endpoint_url="http://s3")

        store._client.put_object = never_sent
        with pytest.raises(UnavailableError):
            store.compare_and_set(NAME, second, b"three")
        assert store.read(NAME).data == b"two"

    def test_a_write_that_the_client_repeats_after_a_lost_response_is_recognised(self, store):
        failed = []

        def lose(request, **_):
            if request.method == "PUT" and not failed:
                store._client.meta.events.unregister("before-send.s3.PutObject", lose)
                response = store._client._endpoint.http_session.send(request)
                failed.append(True)
                response.status_code = 500
                return response
            return None

        store._client.meta.events.register("before-send.s3.PutObject", lose)
        version = store.compare_and_set(NAME, None, b"one")
        assert failed
        assert version == store.read(NAME).version

    def test_a_foreign_object_is_refused_by_name(self, store):
        store._client.put_object(Bucket=store._bucket, Key=store._document(NAME), Body=b"{}")
        with pytest.raises(InputError, match=NAME):
            store.read(NAME)

    def test_a_prefix_of_something_newer_is_refused(self, store, server, below):
        mark = f"{below}registry.json"
        for data in (json.dumps({"serfer registry": 2}).encode(), b"hello"):
            store._client.put_object(Bucket=server.bucket, Key=mark, Body=data)
            with pytest.raises(UsageError, match="update SerFer"):
                S3Store(server.bucket, below)

    def test_a_prefix_beside_it_is_another_registry(self, store, server, below):
        store.compare_and_set(NAME, None, b"one")
        assert S3Store(server.bucket, f"{below}inner/").names("") == []
        assert S3Store(server.bucket, "").read(NAME) is None

    def test_a_prefix_without_a_registry_is_unavailable_to_who_makes_none(self, server, below):
        with pytest.raises(UnavailableError, match="no registry"):
            open_registry(f"s3://{server.bucket}/{below}", create=False)
        open_registry(f"s3://{server.bucket}/{below}")
        open_registry(f"s3://{server.bucket}/{below}", create=False)

    def test_records_and_their_history_are_kept(self, server, below):
        registry = open_registry(f"s3://{server.bucket}/{below}")
        first = registry.update("faces", lambda _: application())
        second = registry.update("faces", lambda record: record.with_version(network(version=2)))
        registry.delete("faces")
        assert [each.application for each in registry.history("faces")] == [second, first]
        assert registry.applications() == []


class TestSeaweed(S3Contract):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        with S3Server() as running:
            server = Server(running.environment, running.bucket)
            with server.client() as client:
                versioned(client, running.bucket)
            yield server


@pytest.fixture(scope="module")
def moto():
    with MotoServer() as running:
        server = Server({**ACCESS, "AWS_ENDPOINT_URL_S3": running.url}, "versioned")
        with server.client() as client:
            for bucket in ("versioned", "plain"):
                client.create_bucket(Bucket=bucket)
            versioned(client, "versioned")
        yield server


@pytest.mark.weekly
class TestMoto(S3Contract):
    """A second server: at a commit SeaweedFS has to do."""

    test_of_writers_at_once_exactly_one_wins_each_version = None  # moto compares and writes in two steps

    @pytest.fixture
    def server(self, moto):
        return moto


class TestRefused:
    @pytest.fixture(autouse=True)
    def server(self, moto, monkeypatch):
        for name, value in moto.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        return moto

    def test_a_bucket_without_versions_is_refused_with_the_command_to_run(self):
        with pytest.raises(UsageError, match="put-bucket-versioning --bucket plain"):
            open_registry("s3://plain/registry")

    def test_a_bucket_that_is_not_there_is_unavailable(self):
        with pytest.raises(UnavailableError, match="its bucket does not exist"):
            open_registry("s3://no-such-bucket/registry")

    @pytest.mark.parametrize("ignored", ["IfNoneMatch", "IfMatch"])
    def test_a_server_that_ignores_conditions_is_refused_and_nothing_is_left(self, server, monkeypatch, ignored):
        below = f"r{next(NUMBER)}/"
        make = s3._client

        def deaf():
            client = make()
            for name in ("put_object", "delete_object"):
                call = getattr(client, name)
                setattr(client, name, lambda call=call, **each: call(**{k: v for k, v in each.items() if k != ignored}))
            return client

        monkeypatch.setattr(s3, "_client", deaf)
        with pytest.raises(UsageError, match="updates would be lost"):
            S3Store(server.bucket, below)
        with server.client() as client:
            assert client.list_objects_v2(Bucket=server.bucket, Prefix=below).get("Contents", []) == []


def test_a_server_that_does_not_answer_is_unavailable(monkeypatch):
    for name, value in {**ACCESS, "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnavailableError, match="s3://bucket/registry"):
        open_registry("s3://bucket/registry")


@pytest.mark.parametrize("url", ["s3://", "s3://A_B/c", "s3://bucket/p?q=1", "s3://bucket/../x", "s3://bucket/a//b"])
def test_a_url_that_is_not_a_registry_is_refused(url):
    with pytest.raises(UsageError, match="not a registry"):
        open_registry(url)
