"""The page and its parts: plain files with a strict policy, checked again by their tags, open to everybody."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from serfer.api.routes import page
from serfer.api.routes.page import list_routes

FILES = Path(page.__file__).with_name("page")
PATHS = ("/", "/docs", "/openapi.json", "/page/app.js", "/page/style.css", "/page/icon.svg")
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@pytest.fixture(params=PATHS)
def path(request):
    return request.param


class PageParser(HTMLParser):
    """What a page asks for, and what stands in it that a strict policy forbids."""

    def __init__(self, text):
        super().__init__()
        self.places, self.forbidden, self._script = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.places += [values[name] for name in ("src", "href") if name in values]
        self.forbidden += [name for name in values if name == "style" or name.startswith("on")]
        self.forbidden += [tag] if tag in ("style", "base", "iframe", "object") else []
        self._script = tag == "script"

    def handle_data(self, data):
        if self._script and data.strip():
            self.forbidden.append("script")


def policy(answer):
    return dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))


def test_nothing_is_allowed_but_the_pages_own_files(lasting_http, path):
    answer = lasting_http.get(path).raise_for_status()
    allowed = policy(answer)
    assert allowed.pop("img-src") == "'self' blob:"
    assert {allowed.pop(name) for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert allowed == dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert answer.headers.get_list("content-security-policy", split_commas=False) == [
        answer.headers["content-security-policy"]
    ]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_file_is_sent_again_only_when_it_has_changed(lasting_http, path):
    first = lasting_http.get(path)
    assert first.headers["cache-control"] == "no-cache"
    again = lasting_http.get(path, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert lasting_http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_head_request_gets_the_headers_alone(lasting_http, path):
    answer = lasting_http.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["etag"] == lasting_http.get(path).headers["etag"]


def test_every_file_has_its_type(lasting_http):
    for file in FILES.iterdir():
        answer = lasting_http.get(f"/page/{file.name}").raise_for_status()
        assert answer.headers["content-type"].startswith(TYPES[file.suffix[1:]])
        assert answer.content == file.read_bytes()


def test_nothing_but_the_pages_files_is_served(lasting_http):
    for name in ("nothing.js", "..%2fpage.py", "%2e%2e%2fpage.py", "app.js%00", ".", "app.py"):
        answer = lasting_http.get(f"/page/{name}")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("place", ["/", "/docs"])
def test_pages_have_no_external_resources_or_inline_code(lasting_http, place):
    parsed = PageParser(lasting_http.get(place).text)
    assert parsed.forbidden == []
    assert [place for place in parsed.places if re.match(r"[a-z]+:|//", place)] == []
    named = {place.removeprefix("page/") for place in parsed.places if place.startswith("page/")}
    assert named <= {file.name for file in FILES.iterdir()}


@pytest.mark.hostile
def test_openapi_is_encoded_once(lasting_http, monkeypatch):
    """It is large, and anybody may ask for it."""
    tag = lasting_http.get("/openapi.json").headers["etag"]
    monkeypatch.setattr("starlette.responses.json.dumps", None)
    for headers, status in (({}, 200), ({"If-None-Match": tag}, 304)):
        answer = lasting_http.get("/openapi.json", headers=headers)
        assert (answer.status_code, answer.headers["etag"]) == (status, tag)


def test_docs_lists_every_route_of_openapi(lasting_http):
    text, paths = lasting_http.get("/docs").text, lasting_http.get("/openapi.json").json()["paths"]
    assert paths
    assert all(f"{method.upper()} <code>{path}</code>" in text for path, methods in paths.items() for method in methods)
    for hostile in ("<script>", "<b>"):
        schema = {"paths": {f"/{hostile}": {"get": {"summary": hostile}}}}
        assert f"<code>/{hostile}" not in list_routes(schema)


def test_modules_import_only_each_other():
    for file in FILES.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        imported = re.findall(r'from "(.*?)"', text)
        assert all((FILES / place).is_file() for place in imported), file.name
        assert not re.search(r"\b(eval|innerHTML|outerHTML|insertAdjacentHTML|document\.write)\b", text), file.name
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
