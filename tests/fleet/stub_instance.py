"""What a provisioner sees of an instance's server, and nothing behind it: `stub_instance.py [--deaf] [--die]`."""

import http.server
import json
import os
import signal
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v2/health/ready" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    if "--die" in sys.argv:
        sys.exit("there is no such model")
    if "--deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        ready = {"url": f"http://127.0.0.1:{server.server_port}", "pid": os.getpid()}
        sys.stdout.write(f"loading\n{json.dumps(ready)}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
