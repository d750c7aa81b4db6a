"""The page asks an application: objectives in, the variant that answered, its plan and all variants out."""

import re
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from playwright.sync_api import expect

import serfer
from serfer.api.app import make_app
from serfer.core.variants import Canary, CanaryLimits, Place
from serfer.registry import open_registry
from serfer.settings import Settings
from tests.applications.services import faces, open_service
from tests.applications.worlds import register, variant, version
from tests.browser.conftest import PATIENCE_MS
from tests.browser.test_page import SIZES, answered, faults
from tests.support.served import running

pytestmark = pytest.mark.browser
DESKTOP = 1280
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def registry_url(tmp_path_factory):
    return faces(tmp_path_factory.mktemp("registry"))


@contextmanager
def served(registry_url, cache, models=None):
    service = open_service(registry_url, cache, models=models)
    with running(make_app(service, Settings())) as url:
        yield f"{url}/", service


@pytest.fixture(scope="module")
def faces_url(registry_url, tmp_path_factory):
    """The page of a service of the application alone."""
    with served(registry_url, tmp_path_factory.mktemp("cache")) as (url, _):
        yield url


@pytest.fixture
def chosen(opened, faces_url, picture):
    """A page on which the application and a picture are chosen, and what goes on behind it."""
    page, noted = opened(faces_url)
    expect(page.locator("#objectives")).to_be_visible()
    page.set_input_files("#file", picture)
    return page, noted


def ask(page, **fields):
    for field, value in fields.items():
        box = page.locator(f"#{field}")
        box.select_option(value) if field == "variant" else box.fill(value)
    page.get_by_role("button", name="Classify").click()
    return page


def test_a_service_of_applications_alone_is_asked_for_one(chosen, faces_url):
    page, noted = chosen
    expect(page.get_by_label("Application", exact=True)).to_have_value("faces")
    expect(page.locator("#model optgroup")).to_have_attribute("label", "Applications")
    expect(page.locator("#stages button")).not_to_have_count(0)  # of the cheapest variant, which is open
    answered(ask(page))
    expect(page.locator("#answer")).to_contain_text("small.whole")
    expect(page.locator("#answer")).to_contain_text("Why: the cheapest active variant that meets the objectives.")
    assert noted.errors == []
    assert noted.violations == []
    home = faces_url.rstrip("/")
    assert [place for place in noted.requests if not place.startswith((home, f"blob:{home}"))] == []


@pytest.mark.parametrize(
    ("fields", "variant", "stages"),
    [
        ({"accuracy": "90"}, "other.whole", 1),
        ({"cost": "0.00001", "latency": "5000"}, "small.whole", 1),
        ({"variant": "small.tiles"}, "small.tiles", 3),
    ],
)
def test_objectives_select_a_variant_whose_plan_is_shown(chosen, fields, variant, stages):
    page, noted = chosen
    answered(ask(page, **fields))
    expect(page.get_by_role("status")).to_contain_text(f"by {variant}")
    expect(page.locator("#model-note")).to_contain_text(f"The plan on show is {variant}'s")
    expect(page.locator("#stages button")).to_have_count(stages)
    expect(page.locator("#variants-table tr.last")).to_have_text(
        re.compile(rf"\d {re.escape(variant)} · answered last")
    )
    assert noted.errors == []


def test_what_is_empty_is_not_asked_and_percent_are_sent_as_a_share(chosen):
    page, _ = chosen
    with page.expect_request("**/v1/classify*") as sent:
        ask(page, accuracy="70.5")
    assert "application=faces&min_accuracy=0.705&top_k=5" in sent.value.url
    answered(page)


def test_an_answer_says_by_how_much_it_misses(chosen):
    page, _ = chosen
    answered(ask(page, accuracy="99", cost="0.00001"))
    missed = page.locator("#answer .missed li")
    assert len(missed.all_inner_texts()) > 0
    expect(page.locator("#answer")).to_contain_text("Why: no variant meets the objectives: the nearest one.")
    expect(page.locator("#answer .missed")).to_contain_text(re.compile(r"Misses the (accuracy by \d|cost by \$)"))


def test_a_strict_query_that_no_variant_meets_is_refused(chosen):
    page, _ = chosen
    page.get_by_label("Refuse rather than answer by the nearest").check()
    ask(page, accuracy="99.9")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("(422)")
    expect(alert).to_contain_text("no variant of faces meets the objectives")
    expect(page.get_by_role("button", name="Classify")).to_be_enabled()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("latency", "0", "above 0"),
        ("accuracy", "0.7", "70 for 70 of 100"),
        ("accuracy", "101", "from 0 to 100"),
        ("cost", "-1", "0 or more"),
    ],
)
def test_wrong_objectives_are_told_at_their_field_and_not_sent(chosen, field, value, words):
    page, noted = chosen
    ask(page, **{field: value})
    wrong = page.locator(f"#{field}-wrong")
    expect(wrong).to_contain_text(words)
    expect(page.locator(f"#{field}")).to_be_focused()
    expect(page.locator(f"#{field}")).to_have_attribute("aria-invalid", "true")
    page.locator(f"#{field}").fill("")
    expect(wrong).to_be_hidden()
    assert not [place for place in noted.requests if "classify" in place]


def test_an_application_stands_beside_models(opened, registry_url, plans, picture, tmp_path):
    lean = serfer.open(plans["lean"], store="memory://", workers="inprocess", hedge=False).asynchronous
    with served(registry_url, tmp_path, {"lean": lean}) as (url, _):
        page, noted = opened(url)
        select = page.get_by_label("Model or application")
        expect(select).to_have_value("lean")
        expect(page.locator("#model optgroup")).to_have_count(2)
        expect(page.locator("#objectives")).to_be_hidden()
        expect(page.locator("#application-box")).to_be_hidden()
        select.select_option("faces")
        expect(page.locator("#objectives")).to_be_visible()
        expect(page.locator("#application-title")).to_have_text("Application faces")
        page.set_input_files("#file", picture)
        answered(ask(page))
        select.select_option("lean")
        expect(page.locator("#objectives")).to_be_hidden()
        expect(page.locator("#application-box")).to_be_hidden()
        expect(page.locator("#stages button")).to_have_count(2)
        answered(ask(page))
        expect(page.locator("#answer")).not_to_contain_text("Selected variant")
        assert noted.errors == []


def test_variants_are_listed_with_state_accuracy_and_source(chosen):
    page, _ = chosen
    answered(ask(page, variant="small.tiles"))
    row = page.locator("#variants-table tbody tr").nth(2)
    expect(row).to_contain_text("other.whole")
    expect(row).to_contain_text("99% (95% to 100%)")
    expect(row).to_contain_text("predicted")


def test_places_sources_and_a_shadow_are_told_apart(opened, faces_url):
    page, noted = opened("about:blank")
    conduct = {"queries": 40, "error_rate": 0.05, "p95_ms": 80.0}
    trial = {"networks": {"other": 2}, "share": 0.25, "since": "2026-01-31T12:00:00+00:00", "by": "ann", "shadow": True}
    trial |= {"verdict": "goes on", "why": "", "canary": conduct, "live": conduct, "compared": 8, "agreed": 7}

    def richer(route):
        detail = route.fetch().json()
        first, second, third = detail["table"]
        first["places"] = {"functions": "inactive", "http://a": "active", "http://b": "inactive"}
        second |= {"places": {"functions": "overloaded"}, "release": "canary"}
        second["latency_ms"]["source"] = "measured"
        third |= {"places": {}, "accuracy": None}
        route.fulfill(json={**detail, "canary": trial})

    page.route("**/v1/applications/faces", richer)
    page.goto(faces_url)
    rows = page.locator("#variants-table tbody tr")
    expect(rows.nth(0)).to_contain_text("active (2 inactive, 1 active)")
    expect(rows.nth(1)).to_contain_text("overloaded")
    expect(rows.nth(2)).to_contain_text("not measured")
    expect(page.locator("#canary")).to_contain_text("Copies of 25% of the queries go to other@2")
    expect(page.locator("#canary")).to_contain_text("7 of 8 copies had the same best classes")
    assert noted.errors == []


def test_an_answer_of_an_instance_has_no_tiles(chosen):
    page, noted = chosen

    def by_instance(route):
        state = route.fetch().json()
        if state["result"]:
            state["result"] |= {"target": "gpu", "stages": [], "plan": "ef" * 32}
            state["result"]["selected"] |= {"place": "instance"}
            state["result"]["timeline"]["tasks"] = []
        route.fulfill(json=state)

    page.route("**/v1/results/*", by_instance)
    answered(ask(page))
    expect(page.locator("#tiles-note")).to_contain_text("ran on an instance")
    assert noted.errors == []


def test_the_panel_follows_the_registry(opened, registry_url, picture, tmp_path):
    """A canary that is begun is seen without a reload; one that fails leaves the live release to answer."""
    registry = open_registry(registry_url)
    before = registry.application("faces")
    broken = variant("other.broken", artefact="cd" * 32, place=Place.FUNCTIONS, usd=1e-6)
    try:
        with served(registry_url, tmp_path) as (url, _):
            page, _ = opened(url)
            expect(page.locator("#variants-table tbody tr")).to_have_count(3)
            expect(page.locator("#canary")).to_be_hidden()
            register(registry, "faces", version("other", 2, broken))
            since = datetime.now(UTC).isoformat(timespec="seconds")
            canary = Canary({"small": 1, "other": 2}, 1.0, since, "ann", CanaryLimits(window_s=600_000, queries=1000))
            registry.update("faces", lambda record: record.with_canary(canary))
            expect(page.locator("#canary")).to_contain_text("100% of the queries are answered by small@1, other@2")
            expect(page.locator("#canary")).to_contain_text(f"since {since[:16].replace('T', ' ')} UTC, started by ann")
            expect(page.locator("#canary")).to_contain_text("Verdict so far:")
            page.set_input_files("#file", picture)
            answered(ask(page, accuracy="80"))
            expect(page.locator("#answer")).to_contain_text("was selected first and failed: ")
            expect(page.locator("#answer")).to_contain_text("small.whole, a canary")
            registry.update("faces", lambda record: record.with_canary_taken_back("too slow"))
            expect(page.locator("#canary")).to_contain_text(
                "The last canary was taken back: small@1, other@2: too slow"
            )
    finally:
        registry.update("faces", lambda _: before)


def test_a_variant_that_is_closed_meanwhile_leaves_its_answer_without_a_plan(chosen):
    page, noted = chosen
    gone = {"title": "Not Found", "status": 404, "detail": "variant faces:small.tiles is not open in this driver"}
    page.route("**/v1/models/faces*tiles", lambda route: route.fulfill(status=404, json=gone))
    answered(ask(page, variant="small.tiles"))
    expect(page.locator("#tiles-note")).to_contain_text("No plan to show")
    expect(page.locator("#stages button")).to_have_count(0)
    expect(page.locator("#compare-box")).to_be_hidden()
    assert [error for error in noted.errors if "404" not in error] == []


def test_an_application_that_cannot_be_asked_for_is_shown_as_it_was(chosen):
    page, _ = chosen
    page.context.set_offline(True)
    expect(page.locator("#application-stale")).to_contain_text("Not up to date")
    expect(page.locator("#variants-table tbody tr")).to_have_count(3)
    page.context.set_offline(False)
    expect(page.locator("#application-stale")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_an_application_fits_the_window_and_keeps_nobody_out(opened, faces_url, picture, size, scheme):
    width, height = SIZES[size]
    look = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, "reduced_motion": "reduce"}
    page, _ = opened(faces_url, bypass_csp=True, **look)
    page.set_input_files("#file", picture)
    answered(ask(page, accuracy="99"))
    ask(page, latency="0")
    expect(page.locator("#latency-wrong")).to_be_visible()
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width >= DESKTOP:
        table = page.locator("#variants-table")
        assert table.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0  # no column is out of sight
    if size == "desktop":  # where the form stands beside its result, and scrolls by itself
        expect(page.get_by_role("button", name="Classify")).to_be_in_viewport(ratio=1)
    assert faults(page) == []
