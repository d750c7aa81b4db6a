"""The page in a real browser: what somebody does with it, and what goes on behind it."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

import serfer
from tests.browser.conftest import PATIENCE_MS
from tests.e2e.dense import split_dense
from tests.e2e.detector import split_detector
from tests.e2e.small import LABELS
from tests.support.served import served

pytestmark = pytest.mark.browser
expect.set_options(timeout=PATIENCE_MS)

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
SIZES = {"desktop": (1280, 900), "phone": (390, 844), "narrow": (360, 640)}
PROBLEM = "application/problem+json"


def ready(page):
    expect(page.locator("#model option")).not_to_have_count(0)
    expect(page.locator("#stages button")).not_to_have_count(0)
    return page


def ask(page, picture):
    ready(page).set_input_files("#file", picture)
    page.get_by_role("button", name="Classify").click()
    return page


def answered(page):
    expect(page.get_by_role("status")).to_contain_text("Done in")
    return page


def test_a_picture_becomes_classes_and_figures(opened, url, picture):
    page, noted = opened(url)
    answered(ask(page, picture))
    expect(page.locator(".classes li")).to_have_count(5)
    first = page.locator(".classes .label").first.inner_text()
    assert first in LABELS
    assert first in page.get_by_role("status").inner_text()
    expect(page.locator("#facts")).to_contain_text("a million such queries")
    assert {one.get_attribute("class") for one in page.locator("#stages rect").all()} == {"done"}
    assert noted.errors == []
    assert noted.violations == []
    home = url.rstrip("/")
    assert [place for place in noted.requests if not place.startswith((home, f"blob:{home}"))] == []


def test_the_comparison_says_what_is_measured_and_what_predicted(opened, url, picture):
    page, _ = opened(url)
    ready(page)
    kinds = page.locator("#compare tbody th .note")
    assert set(kinds.all_inner_texts()) == {"predicted"}
    answered(ask(page, picture))
    measured, predicted = kinds.all_inner_texts()[:2]
    assert measured.startswith("measured here")
    assert predicted == "predicted"
    row = page.locator("#compare tbody tr.measured")
    assert "$" not in row.inner_text()  # times of this machine are not a price of Lambda's
    expect(page.locator("#compare tbody")).to_contain_text("Unsplit, one function of")


def test_every_stages_tiles_lie_over_the_part_that_the_network_sees(opened, url, picture):
    page, _ = opened(url)
    ready(page).set_input_files("#file", picture)
    expect(page.locator("#picture img")).to_be_visible()
    own = page.locator("#picture rect.tile")
    expect(own).to_have_count(4)
    boxes = [{name: float(one.get_attribute(name)) for name in ("x", "y", "width", "height")} for one in own.all()]
    # 60 x 40 becomes 54 x 36, of which 34 x 34 are cut from the middle: 37.8 pixels of the 60 x 40.
    assert min(box["x"] for box in boxes) == pytest.approx(10 * 40 / 36, abs=0.01)
    assert max(box["x"] + box["width"] for box in boxes) == pytest.approx(44 * 40 / 36, abs=0.01)
    assert min(box["y"] for box in boxes) == pytest.approx(1 * 40 / 36, abs=0.01)
    expect(page.locator("#picture rect.reads")).to_have_count(4)
    page.get_by_role("button", name="Stage 2").click()
    expect(own).to_have_count(1)
    expect(page.locator("#tiles-note")).to_contain_text("One task does all of it")


def test_stages_and_tiles_light_up_while_the_query_runs(opened, url, picture):
    page, _ = opened(url)
    held = []
    stages = [
        {"name": "stage-0", "tasks": 4, "done": 2, "started_ms": 1.0, "ended_ms": None, "tiles": [1, 0, 1, 0]},
        {"name": "stage-1", "tasks": 4, "done": 0, "started_ms": None, "ended_ms": None, "tiles": [0] * 4},
        {"name": "stage-2", "tasks": 1, "done": 0, "started_ms": None, "ended_ms": None, "tiles": [0]},
    ]

    def half_way(route):
        held.append(route.request.url)
        state = {"id": route.request.url.rsplit("/", 1)[1], "status": "running", "model": "small", "stages": stages}
        route.fulfill(json=state) if len(held) < 4 else route.continue_()

    page.route("**/v1/results/*", half_way)
    ask(page, picture)
    expect(page.locator("#progress")).to_contain_text("2 of 9 tasks done")
    states = [one.get_attribute("class") for one in page.locator("#picture rect.tile").all()]
    assert states == ["tile done", "tile running", "tile done", "tile running"]
    expect(page.get_by_role("button", name="Stage 0")).to_contain_text("2 of 4 done")
    expect(page.get_by_role("button", name="Stage 1")).to_contain_text("waiting")
    answered(page)
    assert [one.get_attribute("class") for one in page.locator("#picture rect.tile").all()] == ["tile done"] * 4


def test_another_model_brings_another_plan_and_takes_the_old_answer_away(opened, url, picture):
    page, _ = opened(url)
    answered(ask(page, picture))
    page.get_by_label("Model").select_option("lean")
    expect(page.locator("#status")).to_have_text("")
    expect(page.locator("#after")).to_be_hidden()
    expect(page.locator("#stages button")).to_have_count(2)
    expect(page.locator("#model-note")).to_contain_text("3 tasks")
    with page.expect_request("**/v1/classify*") as asked:
        page.get_by_role("button", name="Classify").click()
    assert "model=lean" in asked.value.url
    answered(page)


def test_a_model_that_cannot_be_described_leaves_nothing_of_another_one(opened, url, picture):
    page, _ = opened(url)
    answered(ask(page, picture))
    lost = {"title": "Not Found", "status": 404, "detail": "lean is gone"}
    page.route(
        "**/v1/models/lean", lambda route: route.fulfill(status=404, content_type=PROBLEM, body=json.dumps(lost))
    )
    page.get_by_label("Model").select_option("lean")
    expect(page.get_by_role("alert")).to_contain_text("lean is gone")
    expect(page.locator("#stages button")).to_have_count(0)
    for place in ("#after", "#compare-box", "#raw-box", "#tiles-table-box"):
        expect(page.locator(place)).to_be_hidden()
    page.unroute("**/v1/models/lean")
    with page.expect_request("**/v1/classify*") as asked:
        page.get_by_role("button", name="Classify").click()
    assert "model=lean" in asked.value.url  # and not the model that was on show before
    answered(page)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_what_is_no_picture_is_refused_with_its_reason_and_request_id(opened, url, tmp_path):
    wrong = tmp_path / "letter.png"
    wrong.write_bytes(b"Dear Sir or Madam")
    page, _ = opened(url)
    with page.expect_response("**/v1/classify*"):
        ask(page, wrong)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(re.compile(r"Bad Request \(400\)|Unsupported Media Type \(415\)"))
    expect(alert).to_contain_text("letter.png")
    expect(page.get_by_role("button", name="Classify")).to_be_enabled()


def test_asking_without_a_picture_says_so_and_leads_there(opened, url):
    page, noted = opened(url)
    ready(page).get_by_role("button", name="Classify").click()
    expect(page.get_by_role("alert")).to_contain_text("Choose a picture first")
    expect(page.get_by_label("Choose a picture")).to_be_focused()
    assert not [place for place in noted.requests if "classify" in place]
    page.get_by_label("Model").select_option("lean")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_key_is_asked_for_kept_in_memory_and_in_the_tab_only_if_wanted(opened, keyed, picture):
    address, key = keyed
    page, noted = opened(address)
    expect(page.get_by_role("alert")).to_contain_text("(401)")
    field = page.get_by_label("Key, if this service asks for one")
    expect(field).to_be_focused()
    field.fill(key)
    field.press("Enter")  # what was typed is used at once
    expect(page.locator("#model option")).to_have_count(2)
    answered(ask(page, picture))
    kept = "JSON.stringify([Object.keys(localStorage), Object.values(sessionStorage), document.cookie])"
    assert page.evaluate(kept) == '[[],[],""]'
    page.get_by_label("Keep it until this tab is closed").check()
    assert key in page.evaluate(kept)
    page.reload()
    ready(page)
    page.get_by_text("API key", exact=True).click()
    page.get_by_label("Keep it until this tab is closed").uncheck()
    assert page.evaluate(kept) == '[[],[],""]'
    assert [place for place in noted.requests if key in place] == []


def test_a_full_service_is_asked_again_after_a_countdown(opened, url, picture):
    page, _ = opened(url)
    told = {"title": "Too Many Requests", "status": 429, "detail": "come again in 2 s", "request_id": "abc123"}
    refusals = []

    def full(route):
        refusals.append(route.request.url)
        body = json.dumps(told)
        headers = {"Retry-After": "2"}
        route.fulfill(status=429, headers=headers, content_type=PROBLEM, body=body) if len(
            refusals
        ) < 2 else route.continue_()

    page.route("**/v1/classify*", full)
    ask(page, picture)
    expect(page.get_by_role("alert")).to_contain_text("Too Many Requests (429)")
    expect(page.get_by_role("alert")).to_contain_text("abc123")
    expect(page.locator("#countdown")).to_contain_text("Trying again in 2 s")
    answered(page)
    assert len(refusals) == 2
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#countdown")).to_be_hidden()


def test_a_query_can_be_cancelled_and_its_result_is_forgotten(opened, url, picture):
    page, _ = opened(url)
    state = {"status": "running", "model": "small", "stages": [], "result": None, "problem": None}
    deleted = []

    def endless(route):
        if route.request.method == "DELETE":
            deleted.append(route.request.url)
            route.continue_()
        else:
            route.fulfill(json={"id": route.request.url.rsplit("/", 1)[1], **state})

    page.route("**/v1/results/*", endless)
    with page.expect_request("**/v1/results/*"):
        ask(page, picture)
    with page.expect_response(lambda answer: answer.request.method == "DELETE") as gone:
        page.get_by_role("button", name="Cancel").click()
    assert gone.value.status == 204
    expect(page.get_by_role("status")).to_contain_text("Cancelled")
    expect(page.get_by_role("button", name="Classify")).to_be_enabled()


def test_a_service_that_is_gone_is_said_to_be_gone(opened, url, picture):
    page, _ = opened(url)
    ready(page)
    page.context.set_offline(True)
    ask(page, picture)
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    page.context.set_offline(False)
    page.get_by_role("button", name="Classify").click()
    answered(page)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_query_that_fails_later_says_why(opened, url, picture):
    page, _ = opened(url)
    problem = {"title": "Service Unavailable", "status": 503, "detail": "the store does not answer"}
    state = {"id": "0" * 32, "status": "failed", "model": "small", "stages": [], "problem": problem}
    page.route("**/v1/results/*", lambda route: route.fulfill(json=state))
    page.route("**/v1/classify*", lambda route: route.fulfill(status=202, json={**state, "status": "queued"}))
    ask(page, picture)
    expect(page.get_by_role("alert")).to_contain_text("the store does not answer")


def test_an_answer_without_progress_is_shown_all_the_same(opened, url, picture):
    """A server that does not honour respond-async answers at once."""
    page, _ = opened(url)

    def plainly(route):
        headers = {name: value for name, value in route.request.headers.items() if name != "prefer"}
        route.continue_(headers=headers)

    page.route("**/v1/classify*", plainly)
    answered(ask(page, picture))
    expect(page.locator(".classes li")).to_have_count(5)


def test_a_dropped_picture_is_taken(opened, url, picture):
    page, _ = opened(url)
    ready(page)
    data = page.evaluate_handle(
        """(bytes) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
            return transfer;
        }""",
        list(picture.read_bytes()),
    )
    page.dispatch_event("main", "drop", {"dataTransfer": data})
    expect(page.locator("#file-name")).to_contain_text("dropped.png")
    page.get_by_role("button", name="Classify").click()
    answered(page)


def test_everything_can_be_done_by_keyboard(opened, url, picture):
    page, _ = opened(url)
    page.on("filechooser", lambda chooser: chooser.set_files(picture))
    ready(page)
    stops = []
    for _ in range(12):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert stops[:5] == ["Skip to the result", "API", "file", "model", "top-k"]
    assert "classify" in stops
    page.locator("#file").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#file-name")).to_contain_text(picture.name)
    page.locator("#top-k").focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("3")
    page.keyboard.press("Enter")  # as in any form
    answered(page)
    expect(page.locator(".classes li")).to_have_count(3)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_its_window(opened, url, picture, size, scheme):
    width, height = SIZES[size]
    page, _ = opened(url, viewport={"width": width, "height": height}, color_scheme=scheme)
    answered(ask(page, picture))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_nobody_is_kept_out(opened, url, picture, size, scheme):
    width, height = SIZES[size]
    page, _ = opened(url, viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True)
    assert faults(ready(page)) == []
    answered(ask(page, picture))
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    page.set_input_files("#file", picture)
    page.evaluate("document.getElementById('problem').hidden = false")
    assert faults(page) == []
    page.goto(f"{url}docs")
    expect(page.locator("tbody tr")).not_to_have_count(0)
    assert faults(page) == []


def faults(page):
    """What axe finds wrong with a page by the rules of WCAG 2.2 AA and good practice."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci --prefix tests/browser")
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in found]


def test_the_api_is_described_without_help_from_elsewhere(opened, url):
    page, noted = opened(f"{url}docs")
    routes = page.locator("tbody th code")
    expect(routes).not_to_have_count(0)
    assert "/v1/classify" in routes.all_inner_texts()
    assert noted.errors == []
    assert noted.violations == []
    home = url.rstrip("/")
    assert [place for place in noted.requests if not place.startswith(home)] == []


def test_boxes_are_drawn_over_the_picture(opened, picture, tmp_path):
    plan = split_detector(tmp_path)
    with serfer.open(plan, store="memory://", workers="inprocess") as pipeline:
        [found] = pipeline.predict([picture])
    with served({"boxes": plan}) as url:
        page, noted = opened(f"{url}/")
        ready(page).set_input_files("#file", picture)
        expect(page.locator("#top-k")).to_be_hidden()
        page.get_by_role("button", name="Detect").click()
        answered(page)
        items, drawn = page.locator(".boxes li"), page.locator("#picture .box")
        expect(drawn).to_have_count(len(found.boxes))
        assert items.locator(".label").all_inner_texts() == [box.label for box in found.boxes]  # as text, not HTML
        assert page.locator("#picture svg").get_attribute("viewBox") == f"0 0 {found.width} {found.height}"
        best = drawn.last  # on top
        left, top, right, bottom = found.boxes[0].box
        sides = [float(best.locator("rect").get_attribute(name)) for name in ("x", "y", "width", "height")]
        assert sides == pytest.approx([left, top, right - left, bottom - top], abs=1e-3)
        items.first.hover()
        expect(best).to_have_class(re.compile(r"\blit\b"))
        assert (noted.errors, noted.violations) == ([], [])
        other = tmp_path / "other.png"
        other.write_bytes(picture.read_bytes())
        page.set_input_files("#file", other)
        expect(drawn).to_have_count(0)


def test_maps_and_vectors_are_shown(opened, picture, tmp_path):
    with served({"dense": split_dense(tmp_path, ["classes", "embedding"])}) as url:
        page, noted = opened(f"{url}/")
        ready(page).set_input_files("#file", picture)
        page.get_by_role("button", name="Run").click()
        answered(page)
        expect(page.locator("#answer")).to_contain_text("embedding 5 float32")
        mask = page.get_by_role("img", name="The output classes")
        expect(mask).to_have_js_property("naturalWidth", 34)
        assert (noted.errors, noted.violations) == ([], [])


def test_a_network_that_takes_arrays_alone_says_so(opened, picture, tmp_path):
    with served({"dense": split_dense(tmp_path, ["classes"], preprocess=None)}) as url:
        page, _ = opened(f"{url}/")
        ready(page).set_input_files("#file", picture)
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("alert")).to_contain_text("how an image becomes its input")
