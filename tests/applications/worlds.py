"""Applications of small networks, in a registry of their own."""

from dataclasses import replace

from serfer.core.variants import Accuracy, Application, Figure, NetworkVersion, Place, Validation, Variant
from serfer.plan_directory import load_plan
from tests.e2e.small import CLASSES, split_small

NOW = "2026-01-31T12:00:00+00:00"
DIGEST = "ab" * 32
VALIDATION = Validation(DIGEST, 100, CLASSES)


def variant(name, network="net", version=1, *, ms=40.0, usd=1e-5, correct=90, plan=DIGEST, artefact=DIGEST, **fields):
    return Variant(
        name=name,
        network=network,
        version=version,
        place=fields.pop("place", Place.FUNCTIONS),
        precision="fp32",
        artefact=artefact,
        plan=plan,
        accuracy=Accuracy(correct, 100),
        latency_ms=Figure.predicted(ms),
        load_ms=Figure.predicted(fields.pop("load_ms", 500.0)),
        peak_mb=Figure.predicted(300.0),
        qps=Figure.predicted(20.0),
        usd=Figure.predicted(usd),
        **fields,
    )


def version(network, number, *variants):
    own = tuple(replace(each, network=network, version=number) for each in variants)
    return NetworkVersion(network, number, DIGEST, NOW, "test", VALIDATION, own)


def register(registry, name, *versions):
    """Write an application of these network versions."""

    def made(record):
        record = record or Application(name, CLASSES, DIGEST)
        for each in versions:
            record = record.with_version(each)
        return record

    return registry.update(name, made)


def plan_variant(registry, directory, name, **fields):
    """Split the small network, keep its plan in the registry, and return the variant that it is.

    `seed` and `grids` are the network's.
    """
    chosen = {key: fields.pop(key) for key in ("seed", "grids") if key in fields}
    path = split_small(directory, **chosen)
    return variant(name, plan=load_plan(path).digest, artefact=registry.put_directory(path), **fields)
