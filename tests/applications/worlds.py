"""Applications of small networks, in a registry of their own."""

from dataclasses import replace

from serfer.control.scenario import S_PER_HOUR
from serfer.core.http_messages import EngineSignals, ModelState
from serfer.core.plan import sealed
from serfer.core.variants import Accuracy, Application, Figure, NetworkVersion, Place, Validation
from serfer.plan_directory import load_plan, write_plan
from tests.e2e.small import CLASSES, split_small
from tests.registry import records

NOW = "2026-01-31T12:00:00+00:00"
DIGEST = "ab" * 32
VALIDATION = Validation(DIGEST, 100, CLASSES)


def variant(name, network="net", version=1, *, ms=40.0, usd=1e-5, correct=90, plan=DIGEST, load_ms=500.0, **fields):
    figures = {"latency_ms": ms, "load_ms": load_ms, "peak_mb": 300.0, "qps": 20.0, "usd": usd}
    predicted = {name: Figure.predicted(value) for name, value in figures.items()}
    return replace(
        records.variant(name, network, version), plan=plan, accuracy=Accuracy(correct, 100), **(predicted | fields)
    )


def on_instance(name, qps, network="net", *, usd_per_hour=3.6, **fields):
    fields = {"ms": 10.0, "load_ms": 1000.0, "place": Place.INSTANCE, "kind": "gpu", **fields}
    made = variant(name, network, usd=usd_per_hour / S_PER_HOUR / qps, **fields)
    return replace(made, qps=Figure.measured(qps))


def version(network, number, *variants):
    own = tuple(replace(each, network=network, version=number) for each in variants)
    return NetworkVersion(network, number, DIGEST, NOW, "test", VALIDATION, own)


def model_state(status="loaded", size=1000, caution="", **signals):
    told = EngineSignals(9, 9, 0, 0, 0.1, 1.0, max_batch=8, profiled_ms=5.0, expected_ms=5.0)
    return ModelState(status, size, size, None, 1, 0, 0.1, "", replace(told, **signals), caution)


def register(registry, name, *versions):
    def made(record):
        record = record or Application(name, CLASSES, DIGEST)
        for each in versions:
            record = record.with_version(each)
        return record

    return registry.update(name, made)


def plan_variant(registry, directory, name, output="logits", **fields):
    """Split the small network, keep its plan in the registry, and return the variant that it is.

    `seed` and `grids` are the network's, `output` is what its file calls its output.
    """
    chosen = {key: fields.pop(key) for key in ("seed", "grids") if key in fields}
    path = split_small(directory, **chosen)
    plan = load_plan(path)
    write_plan(sealed(replace(plan, file=replace(plan.file, output=output))), path)
    return variant(name, plan=load_plan(path).digest, artefact=registry.put_directory(path), **fields)
