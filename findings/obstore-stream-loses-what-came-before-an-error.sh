#!/usr/bin/env bash
# obstore 0.12.1 gathers an object's bytes into chunks of 10 MiB at least. Where the connection breaks and cannot be resumed (no ETag), what
# arrived before is dropped with the unfinished chunk: the iterator raises at once, and a reader cannot go on from there. `stream(1)` gives
# all bytes that arrived, then the error. One expects the size of chunks to decide how bytes are cut, not which ones are delivered.
#
# Seen on 2026-11-30, a server that states 100,000 bytes and closes after 60,000:
#   stream()  0 bytes, then GenericError
#   stream(1)  60000 bytes, then GenericError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check obstore==0.12.1
pip freeze
python <<'EOF'
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from obstore.exceptions import GenericError
from obstore.store import HTTPStore


class Breaking(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 09:00:00 GMT")
        self.end_headers()
        self.wfile.write(bytes(60_000))
        self.close_connection = True

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Breaking)
threading.Thread(target=server.serve_forever, daemon=True).start()
store = HTTPStore.from_url(f"http://127.0.0.1:{server.server_port}/", client_options={"allow_http": True})


def received(*least):
    count = 0
    try:
        for chunk in store.get("object").stream(*least):
            count += len(chunk)
    except GenericError:
        print(f"stream({', '.join(map(str, least))})  {count} bytes, then GenericError")
        return count
    raise AssertionError("no error")


assert received() == 0
assert received(1) == 60_000
EOF
