import pytest

from serfer.core.errors import StoreUnavailableError, UsageError
from serfer.storage import Range, open_store
from serfer.storage.contract import StoreContract
from serfer.storage.exchange import START, Message
from serfer_bench.core.redis_cluster import RedisCluster
from tests.storage.test_redis_cluster import password_of
from tests.storage.tls_front import Authority, TlsFront


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def front(server, authority):
    with TlsFront(server.port, authority.context("localhost")) as front:
        yield front


class TestRedisOverTls:
    @pytest.fixture
    def url(self, server, front, authority):
        return f"rediss://:{password_of(server)}@localhost:{front.port}?ssl_ca_certs={authority.file}"

    @pytest.mark.two_at_once
    def test_threads_read_whole_values(self, store):
        StoreContract().test_readers_see_whole_values_while_writers_overwrite(store, "shared")

    @pytest.mark.parametrize("value", [b"", b"\r\n\x00$-1\r\n", bytes(range(256)) * 20_000])
    def test_values_come_back_whole_and_by_range(self, store, value):
        store.put("k", memoryview(value), 60)
        assert store.get_many([Range("k"), Range("k", len(value) // 2)]) == [value, value[len(value) // 2 :]]
        store.delete(["k"])
        assert store.exists(["k"]) == [False]

    def test_an_unknown_authority_is_refused_by_default(self, server, front):
        says = self._refusal(f"rediss://:{password_of(server)}@localhost:{front.port}", server)
        assert f"localhost:{front.port} has a certificate that is not trusted" in says
        assert "ssl_ca_certs=FILE, in --store" in says

    def test_another_authority_is_refused(self, server, front, tmp_path):
        other = Authority(tmp_path / "other")
        url = f"rediss://:{password_of(server)}@localhost:{front.port}?ssl_ca_certs={other.file}"
        assert "has a certificate that is not trusted" in self._refusal(url, server)

    @pytest.mark.parametrize("names", [["elsewhere.example"], ["::1"]])
    def test_a_certificate_for_another_name_is_refused(self, server, authority, names):
        with TlsFront(server.port, authority.context(*names)) as front:
            for host in ("localhost", "127.0.0.1"):
                url = f"rediss://:{password_of(server)}@{host}:{front.port}?ssl_ca_certs={authority.file}"
                says = self._refusal(url, server)
                assert "has a certificate for another name" in says
                assert f"not valid for '{host}'" in says
                assert "write the host in --store as" in says

    def test_names_and_authorities_are_unchecked_only_where_the_url_says_so(self, server, front):
        with open_store(f"rediss://:{password_of(server)}@127.0.0.1:{front.port}?ssl_cert_reqs=none") as store:
            assert store.exists(["k"]) == [False]

    def test_plain_redis_to_a_port_with_tls(self, server, front):
        says = self._refusal(f"redis://:{password_of(server)}@localhost:{front.port}", server)
        assert "closed the connection" in says
        assert "rediss:// in --store" in says

    def test_tls_to_a_plain_port(self, server, authority):
        url = f"rediss://:{password_of(server)}@localhost:{server.port}?ssl_ca_certs={authority.file}&socket_connect_timeout=0.5"
        says = self._refusal(url, server)
        assert "TLS" in says
        assert "write redis:// in --store" in says

    def test_a_file_of_certificates_that_is_not_there(self, tmp_path):
        with pytest.raises(UsageError, match=r"--store: ssl_ca_certs names no file: .*/nothing[.]pem"):
            open_store(f"rediss://:hush@localhost?ssl_ca_certs={tmp_path}/nothing.pem")

    @pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
    def test_a_file_without_certificates(self, option, tmp_path):
        (tmp_path / "empty.pem").write_text("nothing")
        with pytest.raises(UsageError, match="--store: ssl_ca_certs, ssl_certfile or ssl_keyfile is not a usable PEM"):
            open_store(f"rediss://:hush@localhost?{option}={tmp_path}/empty.pem")

    def _refusal(self, url, server):
        with open_store(url) as store, pytest.raises(StoreUnavailableError) as caught:
            store.get("k")
        says = str(caught.value)
        assert password_of(server) not in says
        assert "\n" not in says
        return says


def test_a_cluster_over_tls(authority):
    context = authority.context("127.0.0.1", "localhost")
    with (
        TlsFront(None, context) as one,
        TlsFront(None, context) as two,
        RedisCluster(nodes=2, announced=[one.port, two.port]) as cluster,
    ):
        one.target_port, two.target_port = (node.port for node in cluster.nodes)
        login = f":{password_of(cluster.nodes[0])}"
        with open_store(f"rediss+cluster://{login}@localhost:{one.port}?ssl_ca_certs={authority.file}") as store:
            for number in range(20):
                store.put(f"k{number}", b"x", 60)
            assert store.exists([f"k{number}" for number in range(20)]) == [True] * 20
            assert {("127.0.0.1", one.port), ("127.0.0.1", two.port)} <= store._commands._nodes.keys()
            exchange = store.exchange()
            exchange.send([Message(f"in{number}", b"x") for number in range(20)], 60)
            assert all(exchange.receive(f"in{number}", START, 30) for number in range(20))
            exchange.close()
