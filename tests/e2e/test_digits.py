"""Networks of four sizes behind one application: queries ask for what they need and get it, by their labels."""

import asyncio

import httpx
import numpy as np
import pytest

import serfer
from serfer.core.variants import Place
from serfer.registry import open_registry
from serfer.settings import Settings
from serfer.splitter.network.description import read_preprocess
from tests.e2e.conftest import PATIENCE, SERVED
from tests.variants.digits import LABELS, SIZES, digits, png, write_digits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PHASES = [
    {},
    {"min_accuracy": 0.65},
    {"min_accuracy": 0.9},
    {"min_accuracy": 0.94, "strict": "true"},
    {"network": "small"},
    {"max_cost_usd": 1e-12},
]
QUERIES, MEAN_GAP_S, BURST = 60, 0.05, 12


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """All four networks, registered with the 2,000 held-out images."""
    root = tmp_path_factory.mktemp("digits")
    files, url = write_digits(root), str(root / "registry")
    for size in SIZES:
        serfer.register(
            str(files.networks[size]),
            "digits",
            files.validation,
            registry=url,
            most=5,
            usd_per_hour=0.1,
            preprocess=read_preprocess(files.preprocess),
            labels=LABELS,
            activation="softmax",
            settings=Settings(cache_dir=root / "cache"),
        )
    return url


@pytest.fixture
def url(start, registry):
    """A driver with workers in its process, and an instance beside it, as processes."""
    where = ("--registry", registry, "--app", "digits")
    instance = start("instance", *where, "--port", "0", "--json", "--set", "log_level=error")
    place = instance.said()["url"]
    driver = start(
        *("serve", *where, "--workers", "inprocess", "--store", "memory://"),
        *("--set", f"variant_instances=static:{place}", *SERVED),
    )
    yield driver.said()["url"]
    for command in (driver, instance):
        command.stop()


async def replay(url, phase, objectives):
    """Send a phase's queries as they arrive, Poisson with a burst in the middle; returns their answers and labels."""
    random, known = np.random.default_rng(phase), digits()
    gaps = random.exponential(MEAN_GAP_S, QUERIES)
    gaps[QUERIES // 2 : QUERIES // 2 + BURST] = 0.0
    chosen = random.integers(0, len(known.held_out), QUERIES)

    async def ask(http, number, after_s):
        await asyncio.sleep(after_s)
        reply = await http.post("/v1/classify", params=objectives, files={"image": png(known.held_out[number])})
        assert reply.status_code == 200, reply.text
        return reply.json()

    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
        asked = zip(chosen.tolist(), np.cumsum(gaps).tolist(), strict=True)
        answers = await asyncio.gather(*(ask(http, number, after_s) for number, after_s in asked))
    return answers, known.held_out_labels[chosen]


def test_every_query_of_changing_objectives_is_answered_by_a_variant_that_meets_them(url, registry):
    record = open_registry(registry).known("digits")
    variants = {each.name: each for each in record.variants(record.live_release.networks)}
    assert {each.network for each in variants.values()} == set(SIZES)
    assert {each.place for each in variants.values()} == {*Place}
    places = set()
    for phase, objectives in enumerate(PHASES):
        answers, labels = asyncio.run(replay(url, phase, objectives))
        selected = [answer["selected"] for answer in answers]
        used = [variants[each["variant"]] for each in selected]
        places |= {each.place for each in used}
        if "max_cost_usd" in objectives:
            assert all(each["missed"]["max_cost_usd"] > 0 for each in selected)
            continue
        assert all(not each["missed"] for each in selected)
        assert all(each.least_accuracy >= objectives.get("min_accuracy", 0.0) for each in used)
        assert all(each.network == objectives.get("network", each.network) for each in used)
        found = [answer["images"][0]["predictions"][0]["index"] for answer in answers]
        right, expected = np.mean(np.array(found) == labels), np.mean([each.accuracy.share for each in used])
        assert right >= expected - 4 * np.sqrt(expected * (1 - expected) / QUERIES)
    assert places == {*Place}
