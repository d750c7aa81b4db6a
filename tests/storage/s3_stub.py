"""An HTTP server that answers as a test wants, and records the requests."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class S3Request(NamedTuple):
    method: str
    path: str
    headers: dict
    body: bytes
    port: int = 0  # the client's: which connection it came by


def refused(status, code, message="because", more=""):
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    return status, {"Content-Type": "application/xml"}, body.encode()


def listed(names, *, more):
    entries = "".join(
        f"<Contents><Key>{name}</Key><LastModified>2020-01-01T00:00:00Z</LastModified><Size>0</Size></Contents>"
        for name in names
    )
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>" * more
    return f"<ListBucketResult>{more}{entries}</ListBucketResult>".encode()


@contextlib.contextmanager
def stub(answer, idle_s=None, closed=None):
    """Serve `answer(request)`: (status, headers, body), or None to hang up; yields the URL and the requests.

    Connections that are idle for so many seconds are closed, which puts the client's port into the queue `closed`.
    """
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = idle_s

        def _serve(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = S3Request(
                self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body, self.client_address[1]
            )
            seen.append(request)
            response = answer(request)
            if response is None:
                self.close_connection = True
                return
            status, headers, body = response
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):  # a client that hung up
            pass

        def process_request_thread(self, request, client_address):
            super().process_request_thread(request, client_address)
            if closed:
                closed.put(client_address[1])

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()
