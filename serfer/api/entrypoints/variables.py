"""What the environment variables of a driver in AWS say: its plans, their store, their workers and its engine.

SERFER_PLAN            plan directories with a colon between two, of which plan.json is enough; relative ones lie in
                       LAMBDA_TASK_ROOT, or else in the working directory, which is the plan where none is named
SERFER_STORE           the URL of the store that the stages' functions were deployed with
SERFER_OBJECT_STORE    that of the second one, if there is one
SERFER_WORKERS         "aws" by default; with "inprocess" the driver computes everything itself, by whole directories
SERFER_DRIVER          "push" by default, "poll", "stepfunctions" or "stepfunctions-express"

Those of every driver, SERFER_FUNCTION_PREFIX and SERFER_STATE_MACHINE among them, are read by serfer/settings.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from serfer.api.entrypoints.serving import Opening
from serfer.core.errors import UsageError
from serfer.core.plan.layout import PLAN_FILE
from serfer.plan_directory import load_plan
from serfer.wiring.options import DRIVERS, WORKERS


def named_opening(variables: Mapping[str, str]) -> Opening:
    """Return how a driver's variables want every model opened; raises UsageError that names the wrong one."""
    workers = _one_of("SERFER_WORKERS", variables.get("SERFER_WORKERS") or "aws", WORKERS)
    driver = _one_of("SERFER_DRIVER", variables.get("SERFER_DRIVER") or "push", DRIVERS)
    store = variables.get("SERFER_STORE") or None
    if workers == "aws" and store is None:
        raise UsageError("SERFER_STORE is not set: give the URL of the store that the functions were deployed with")
    return Opening(store, workers, driver, variables.get("SERFER_OBJECT_STORE") or None)


def named_models(variables: Mapping[str, str]) -> dict[str, Path]:
    """Return the plan directories that a driver's variables name, by their models.

    Raises UsageError that names the wrong variable, PlanError for what is not a plan.
    """
    models: dict[str, Path] = {}
    for directory in _plans(variables):
        name = load_plan(directory).model
        if name in models:
            raise UsageError(f"SERFER_PLAN: two plans are of the model {name}")
        models[name] = directory
    if len(models) > 1 and variables.get("SERFER_DRIVER", "").startswith("stepfunctions"):
        raise UsageError("SERFER_PLAN: a state machine is one plan's, so SERFER_DRIVER=stepfunctions wants one plan")
    return models


def _plans(variables: Mapping[str, str]) -> list[Path]:
    root = Path(variables.get("LAMBDA_TASK_ROOT") or ".")
    if named := variables.get("SERFER_PLAN"):
        return [root / directory for directory in named.split(os.pathsep)]
    if not (root / PLAN_FILE).is_file():
        raise UsageError("no plan: put a plan directory's files into the driver's package, or set SERFER_PLAN")
    return [root]


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UsageError(f"{name} is {', '.join(known[:-1])} or {known[-1]}, not {value!r}")
    return value
