"""Templates of every combination that `serfer deploy package` offers, as AWS's own translator and cfn-lint see them."""

import copy
import functools
import itertools
import json
import tomllib
from dataclasses import replace
from pathlib import Path

from serfer.core.plan import sealed
from serfer.sam.cost.fixed import PRICED
from serfer.sam.deployer import actions
from serfer.sam.options import DRIVERS, ENGINES, STORES, GpuPool, Options, Pings, Serves, digest12
from serfer.sam.template.template import make_template
from tests.drivers.plans import wide_plan

COMBINATIONS = tuple(
    chosen for chosen in itertools.product(DRIVERS, STORES, ENGINES) if chosen[:2] != ("fleet", "valkey-public")
)
# Each driver, store and engine; linting takes seconds of processor time, so the rest is for `make slow`.
FEW = (
    ("function", "s3", "push"),
    ("function", "valkey", "stepfunctions"),
    ("fleet", "s3express", "stepfunctions-express"),
    ("fleet", "redis", "poll"),
    ("function", "valkey-public", "push"),
)
FETCHED = ("fetched",)
FETCHING = (("function", "s3", "push"), ("function", "valkey", "push"), ("fleet", "redis", "poll"))
IN_IMAGES = ("function", "valkey", "push")
IN_DRIVER = ("function", "s3", "push")
POOL = GpuPool("g6.xlarge", 4, 2)
SPOT_POOL = GpuPool("g6.xlarge", 4, 2, spot=True)
POOLED = ("fleet", "s3", "push")
KEEPING = (("function", "s3", "push"), ("function", "valkey", "push"), ("fleet", "redis", "poll"))  # results
SERVING = (("function", "s3", "push"), ("function", "valkey", "push"), ("fleet", "s3", "push"))  # applications
SERVES = Serves("s3://models/faces", ("faces", "pets"))
PINGED = ("function", "s3express", "push")
FREE = Path(__file__).parents[1] / "data" / "free_types.toml"


def options(drivers="function", store="s3", engine="push", **more):
    zone = "use1-az4" if store == "s3express" else None
    return Options("shop", drivers=drivers, store=store, engine=engine, **{"zone": zone, **more})


@functools.cache
def plans():
    """Return a plan with columns in functions of their own, and the one before it."""
    current = sealed(wide_plan((4, 4, 2, 1), (1, 1, 2, 1)))
    return current, sealed(replace(current, model="the one before"))


def placed(plan, *places):
    """Return a plan whose stages have their weights in these places, or all of them in the one that is given."""
    each = places if len(places) > 1 else places * len(plan.stages)
    stages = [replace(stage, weights_in=place) for stage, place in zip(plan.stages, each, strict=True)]
    return sealed(replace(plan, stages=tuple(stages)))


@functools.cache
def plans_in(*places):
    """Return the same plans, their weights in other places than zips."""
    return tuple(placed(plan, *places) for plan in plans())


@functools.cache
def _template(*chosen, places=("zip",), **more):
    return make_template(options(*chosen, **more), plans_in(*places))


def template(*chosen, **more):
    return copy.deepcopy(_template(*chosen, **more))


@functools.cache
def _in_driver():
    """Return the template of a driver function that runs its plan itself, whose weights are fetched."""
    plan = placed(sealed(wide_plan((1,))), "fetched")
    return make_template(options(*IN_DRIVER), [plan], driver_runs={digest12(plan): 3538})


@functools.cache
def with_variants(*chosen):
    """Return a template with the functions of another variant beside the current plan's."""
    other = sealed(replace(plans()[0], model="another variant"))
    return make_template(options(*chosen, applications=SERVES), plans(), beside={digest12(plans()[0]): [other]})


def with_cold_plan(*chosen, places=("zip",), **more):
    """Return a plan, its cold plan, and their template with the plan before."""
    main, before = plans()
    cold = placed(sealed(replace(main, weights="in parts")), *places)
    return main, cold, make_template(options(*chosen, **more), [main, before], cold={digest12(main): cold})


def every_template():
    """Yield each combination with its template, and some with a GPU pool, weights elsewhere, or without functions."""
    yield from ((chosen, _template(*chosen)) for chosen in COMBINATIONS)
    yield POOLED, _template(*POOLED, gpu=POOL)
    yield from ((chosen, _template(*chosen, places=FETCHED)) for chosen in FETCHING)
    yield POOLED, _template(*POOLED, gpu=SPOT_POOL)
    yield POOLED, _template(*POOLED, gpu=POOL, places=FETCHED)
    yield IN_IMAGES, _template(*IN_IMAGES, places=("image",))
    yield IN_DRIVER, _in_driver()
    yield from ((chosen, _template(*chosen, results_days=2)) for chosen in KEEPING)
    yield KEEPING[1], _template(*KEEPING[1], results_days=2, places=FETCHED)
    yield from ((chosen, _template(*chosen, applications=SERVES)) for chosen in SERVING)
    yield SERVING[2], with_variants(*SERVING[2])
    yield PINGED, _template(*PINGED, pings=Pings(5))


def translated(source, **parameters):
    """Return what CloudFormation gets: the template without SAM's own types."""
    from samtranslator.parser.parser import Parser  # noqa: PLC0415 - slow to import
    from samtranslator.translator.translator import Translator  # noqa: PLC0415 - same

    source = copy.deepcopy(source)
    for resource in source["Resources"].values():
        if resource["Type"].startswith("AWS::Serverless::"):
            for name in {"CodeUri", "ContentUri", "DefinitionUri"} & resource["Properties"].keys():
                resource["Properties"][name] = f"s3://artefacts/{resource['Properties'][name]}"
            if resource["Properties"].get("PackageType") == "Image":  # which sam package has pushed
                tag = resource["Metadata"]["DockerTag"]
                resource["Properties"]["ImageUri"] = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/shop/repo:{tag}"
    return Translator({}, Parser()).translate(source, parameters)


def findings(text):
    from cfnlint import api  # noqa: PLC0415 - slow to import
    from cfnlint.config import ManualArgs  # noqa: PLC0415 - same

    return [
        f"{finding.rule.id} {finding.message} ({finding.path})"
        for finding in api.lint(text, config=ManualArgs(regions=["us-east-1"]))
    ]


def lint(source):
    """Return what cfn-lint finds in a template, and in what SAM makes of it."""
    return findings(json.dumps(source)) + findings(json.dumps(translated(source)))


def unknown_types(source):
    """Return the types of a template's resources that have no price; raises KeyError for one without permissions."""
    kinds = {resource["Type"] for resource in source["Resources"].values()}
    actions(kinds)
    return kinds - PRICED.keys() - {*tomllib.loads(FREE.read_text())["types"]}


def of_type(source, kind):
    return {name: resource for name, resource in source["Resources"].items() if resource["Type"] == kind}
