import shutil
import time
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import sync_playwright

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, add_key
from serfer.api.service import Service
from serfer.settings import Settings
from tests.e2e.small import split_small
from tests.support.served import Observed, png, running

PATIENCE_MS = 60_000  # a busy machine takes its time


@pytest.fixture(scope="session")
def plans(tmp_path_factory):
    """Two plans of one network: four tiles, four tiles and one task; two tiles and one task."""
    places = tmp_path_factory.mktemp("page")
    return {"small": split_small(places / "small"), "lean": split_small(places / "lean", grids=[(1, 2), (1, 1)])}


@pytest.fixture(scope="session")
def serve(plans):
    """Return what makes an application of both models, each time with pipelines of its own."""

    def make(keys=None):
        # Without duplicates of late tasks, which a busy machine makes and the timeline shows, lines can be counted.
        options = {"store": "memory://", "workers": "inprocess", "hedge": False}
        pipelines = {name: serfer.open(plan, **options).asynchronous for name, plan in plans.items()}
        return make_app(Service(pipelines, Admission(4, 8), Observed()), Settings(), keys)

    return make


@pytest.fixture(scope="session")
def url(serve):
    with running(serve()) as url:
        yield f"{url}/"


@pytest.fixture(scope="session")
def keyed(serve, tmp_path_factory):
    """The page of a service that asks for a key, and such a key."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    key = add_key(path, "page", None)
    with running(serve(KeyRing(path, time.monotonic))) as url:
        yield f"{url}/", key


@pytest.fixture(scope="session")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("picture") / "noise.png"
    path.write_bytes(png(60, 40))
    return path


@pytest.fixture(scope="session")
def browser():
    """Chromium, as Debian has it."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not on PATH: `make browser` installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Noted:
    """What went on behind a page: what it said on its console, where it sent requests, what its policy stopped."""

    errors: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    violations: list = field(default_factory=list)

    def violated(self, what):
        self.violations.append(what)


@pytest.fixture
def opened(browser):
    """Open a page, noting what goes on behind it: opened(url, **context) returns (page, Noted)."""
    contexts = []

    def open_page(url, **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page, noted = context.new_page(), Noted()
        page.expose_function("noteViolation", noted.violated)
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation', (event) =>"
            " window.noteViolation(`${event.violatedDirective} ${event.blockedURI}`))"
        )
        page.on("console", lambda message: noted.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: noted.errors.append(str(error)))
        page.on("request", lambda request: noted.requests.append(request.url))
        page.goto(url)
        return page, noted

    yield open_page
    for context in contexts:
        context.close()
