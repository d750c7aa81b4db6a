"""BUILD directories as `serfer deploy package` writes them, as far as prices and the doctor read them."""

import functools

from serfer.plan_directory import load_plan, write_plan
from serfer.sam.deployment import Deployment, dump_deployment
from serfer.sam.options import RECORD, TEMPLATE, Options, digest12
from serfer.sam.samconfig import FILE, samconfig
from serfer.sam.template.template import dump, make_template
from tests.core.plans import small_plan


def digests(directories):
    return [digest12(load_plan(directory)) for directory in directories]


def files(directory):
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def options(**choices):
    zone = "use1-az4" if choices.get("store") == "s3express" else None
    return Options("demo", **{"zone": zone, **choices})


def deployment(plan, chosen):
    return Deployment("0.1.0", chosen, (digest12(plan),), precompiled=True, bytes={"stage-0": 1000}, digest="0" * 64)


@functools.cache
def _template(plan, chosen):
    return dump(make_template(chosen, [plan]))


def build(place, plan=None, **choices):
    plan, chosen = plan or small_plan(), options(**choices)
    plans = place / "driver" / "plans" / digest12(plan)
    plans.mkdir(parents=True)
    write_plan(plan, plans)
    (place / TEMPLATE).write_text(_template(plan, chosen))
    (place / FILE).write_bytes(samconfig(chosen))
    (place / RECORD).write_text(dump_deployment(deployment(plan, chosen)))
    return place
