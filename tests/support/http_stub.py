"""A server that replies as a test says, and remembers what it was sent."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace


class Server:
    """Replies with each of `replies` in turn, (status, headers, body), the last one from then on."""

    def __init__(self, port):
        self.url, self.requests, self.replies = f"http://127.0.0.1:{port}", [], [(200, {}, b"{}")]
        self.came = threading.Semaphore(0)

    def answer(self, _request):
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@contextmanager
def serving():
    class Handler(BaseHTTPRequestHandler):
        def _answer(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            fields = {name.lower(): value for name, value in self.headers.items()}
            request = SimpleNamespace(method=self.command, path=self.path, headers=fields, body=body)
            server.requests.append(request)
            status, headers, text = server.answer(request)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)
            server.came.release()

        do_GET = do_POST = do_PUT = _answer  # noqa: N815 - http.server's own

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = Server(http.server_address[1])
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
