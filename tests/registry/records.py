"""Records of applications, small, for tests."""

from serfer.core.variants import Accuracy, Application, Figure, NetworkVersion, Place, Validation, Variant

CREATED = "2026-01-31T12:00:00+00:00"
DIGEST = "ab" * 32


def variant(name="fp32", network="net", version=1, **fields):
    return Variant(
        name=name,
        network=network,
        version=version,
        place=Place.FUNCTIONS,
        precision="fp32",
        artefact=fields.pop("artefact", DIGEST),
        plan=DIGEST,
        accuracy=Accuracy(90, 100),
        latency_ms=Figure.measured(40.0),
        load_ms=Figure.measured(700.0),
        peak_mb=Figure.predicted(300.0),
        qps=Figure.predicted(20.0),
        usd=Figure.predicted(1e-5),
        **fields,
    )


def network(name="net", version=1, variants=None, **fields):
    made = variants or (variant(f"{name}-v{version}-fp32", name, version),)
    return NetworkVersion(name, version, DIGEST, CREATED, "test", Validation(DIGEST, 100, 10), tuple(made), **fields)


def application(name="faces", *networks):
    made = Application(name, 10, DIGEST)
    for each in networks or (network(),):
        made = made.with_version(each)
    return made
