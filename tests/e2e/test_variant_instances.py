"""Case II with real processes: load starts an instance and loads a variant, its end stops it, and no query is lost."""

import asyncio
from dataclasses import replace

import httpx
import pytest

import serfer
from serfer.core.variants import Figure, Place
from serfer.plan_directory import load_plan
from serfer.registry import open_registry
from serfer.splitter.network.description import read_preprocess
from tests.applications.worlds import register, variant, version
from tests.e2e.conftest import PATIENCE, SERVED, eventually
from tests.e2e.load import Load
from tests.variants.digits import LABELS, digits, png, write_digits

APP = "digits"
PRICE = 0.36  # dollars an hour
QUIET_S, LOUD_S = 0.2, 0.02  # between queries: what batches of one take, and what only larger ones do


@pytest.fixture
def registry(tmp_path):
    """A network on functions that cost much, and on instances, in batches of one and of eight."""
    files = write_digits(tmp_path / "files", ("tiny",), 8)
    path = serfer.split(
        str(files.networks["tiny"]),
        out=tmp_path / "plan",
        grids=[(1, 1)],
        preprocess=read_preprocess(files.preprocess),
        labels=LABELS,
        activation="softmax",
    ) and (tmp_path / "plan")
    found = open_registry(str(tmp_path / "registry"))
    kept = {"plan": load_plan(path).digest, "artefact": found.put_directory(path)}
    functions = variant("function", ms=50.0, usd=1e-3, **kept)
    ones, eights = (instance_variant(f"b{batch}", qps, batch, kept) for batch, qps in ((1, 8.0), (8, 400.0)))
    register(found, APP, version("net", 1, functions, ones, eights))
    return str(tmp_path / "registry")


def instance_variant(name, qps, batch, kept):
    usd = PRICE / 3600 / qps
    made = variant(name, ms=40.0, usd=usd, place=Place.INSTANCE, kind="here", batch=batch, load_ms=50.0 * batch, **kept)
    return replace(made, qps=Figure.measured(qps))


def counts(detail, what):
    return {row["name"]: row[what] for row in detail["table"] if row["place"] == "instance"}


async def rise(url):
    async with Load(url, png(digits().held_out[0]), QUIET_S) as load:

        def variants(last):
            return {answer["selected"]["variant"] for _, answer in load.answers[-last:]}

        def faster_alone():
            detail = httpx.get(f"{url}/v1/applications/{APP}").json()
            return detail if counts(detail, "loaded") == {"b1": 0, "b8": 1} else None

        await load.until(lambda: variants(10) & {"b1", "b8"}, "an instance answers")
        load.gap_s = LOUD_S
        await load.until(lambda: "b8" in variants(50), "the faster variant answers")
        detail = await load.until(faster_alone, "the slower one goes")
        assert counts(detail, "desired")["b8"]
        assert detail["scaled"]
    return load.answers


@pytest.mark.slow
def test_instances_and_variants_follow_the_load_and_no_query_is_lost(start, registry):
    driver = start(
        *("serve", "--registry", registry, "--app", APP, "--workers", "inprocess", "--store", "memory://"),
        *("--set", "variant_instances=local:1", *SERVED),
    )
    url = driver.said()["url"]
    answers = asyncio.run(rise(url))
    assert {status for status, _ in answers} == {200}
    assert answers[0][1]["selected"]["variant"] == "function"
    found = {answer["images"][0]["predictions"][0]["index"] for _, answer in answers}
    assert len(found) == 1
    metrics = httpx.get(f"{url}/metrics").text
    assert 'serfer_variant_changes_total{change="started"} 1.0' in metrics

    def stopped():
        return 'serfer_variant_instances{state="on",type=""} 0.0' in httpx.get(f"{url}/metrics").text

    eventually(stopped, "the instance is stopped", every=0.2)
    reply = httpx.post(f"{url}/v1/classify", files={"image": png(digits().held_out[0])}, timeout=PATIENCE)
    assert reply.json()["selected"]["variant"] == "function"
    driver.stop()
