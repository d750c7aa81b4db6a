#!/usr/bin/env bash
# A server may send informational answers (1xx) before the one that counts; a client skips those that it does not know. http.client of
# Python 3.11 skips 100 alone: for 102 and 103 (Early Hints, which CDNs and proxies send) it returns the hint as the answer, with an empty
# body, and so do urllib3 2.8.0 and requests 2.34.2, which stand on it. httpx 0.28.1 and aiohttp 3.14.5 return the 200.
#
# Seen on 2026-11-30, a server that sends the line and then 200 with the body "answer":
#   103  http.client (103, b'')  urllib3 (103, b'')  requests (103, b'')  httpx (200, b'answer')  aiohttp (200, b'answer')
#   102  http.client (102, b'')  urllib3 (102, b'')  requests (102, b'')  httpx (200, b'answer')  aiohttp (200, b'answer')
#   100  http.client (200, b'answer')  urllib3 (200, b'answer')  ...
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check requests==2.34.2 urllib3==2.8.0 httpx==0.28.1 aiohttp==3.14.5
pip freeze
python <<'EOF'
import asyncio
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import httpx
import requests
import urllib3


class Hinting(BaseHTTPRequestHandler):
    def do_GET(self):
        self.wfile.write(f"HTTP/1.1 {self.path[1:]} Informational\r\n\r\n".encode())
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nanswer")

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Hinting)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/"


def by_http_client(code):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", f"/{code}")
    answer = connection.getresponse()
    return answer.status, answer.read()


async def by_aiohttp(code):
    async with aiohttp.ClientSession() as session, session.get(f"{url}{code}") as answer:
        return answer.status, await answer.read()


for code in (103, 102, 100):
    read = {"http.client": by_http_client(code)}
    read["urllib3"] = (lambda answer: (answer.status, answer.data))(urllib3.request("GET", f"{url}{code}", retries=False, timeout=10))
    read["requests"] = (lambda answer: (answer.status_code, answer.content))(requests.get(f"{url}{code}", timeout=10))
    read["httpx"] = (lambda answer: (answer.status_code, answer.content))(httpx.get(f"{url}{code}"))
    read["aiohttp"] = asyncio.run(by_aiohttp(code))
    print(code, "", "  ".join(f"{client} {answer}" for client, answer in read.items()))
    expected = (200, b"answer")
    assert read["httpx"] == read["aiohttp"] == expected
    assert read["http.client"] == read["urllib3"] == read["requests"] == (expected if code == 100 else (code, b""))
EOF
