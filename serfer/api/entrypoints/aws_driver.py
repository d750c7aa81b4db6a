"""Configuration of a driver in AWS, by its settings."""

from __future__ import annotations

import os
from pathlib import Path

from serfer.api.entrypoints.opening import Opening
from serfer.applications.opening import ApplicationOptions
from serfer.core.errors import UsageError
from serfer.core.plan.layout import PLAN_FILE
from serfer.plan_directory import load_plan
from serfer.settings import DriverSettings, Settings
from serfer.wiring.options import DRIVERS, WORKERS, Choices


def opening_of(settings: DriverSettings) -> Opening:
    """Return how a driver's settings want every model opened; raises UsageError that names the wrong variable."""
    workers = _one_of("SERFER_WORKERS", settings.workers, WORKERS)
    driver = _one_of("SERFER_DRIVER", settings.driver, DRIVERS)
    if workers == "aws" and settings.store is None:
        raise UsageError("SERFER_STORE is not set: give the URL of the store that the functions were deployed with")
    return Opening(Choices(settings.store, workers, driver, settings.object_store))


def models_of(settings: DriverSettings) -> dict[str, Path]:
    """Return the plan directories that a driver's settings name, by their models.

    Raises UsageError that names the wrong variable, PlanError for what is not a plan.
    """
    models: dict[str, Path] = {}
    for directory in _plans(settings):
        name = load_plan(directory).model
        if name in models:
            raise UsageError(f"SERFER_PLAN: two plans are of the model {name}")
        models[name] = directory
    if len(models) > 1 and settings.driver.startswith("stepfunctions"):
        raise UsageError("SERFER_PLAN: a state machine is one plan's, so SERFER_DRIVER=stepfunctions wants one plan")
    return models


def applications_of(driver: DriverSettings, settings: Settings) -> ApplicationOptions | None:
    """Return the applications that a driver's settings name, None for none.

    Raises UsageError that names the missing variable, PlanError for what is not a plan.
    """
    if not driver.applications:
        return None
    if settings.registry is None:
        raise UsageError("SERFER_APPLICATIONS is set: set SERFER_REGISTRY to the URL of the registry that has them")
    if not driver.application_plans:
        raise UsageError("SERFER_APPLICATIONS is set: set SERFER_APPLICATION_PLANS to plans whose functions are there")
    directories = [driver.lambda_task_root / folder for folder in driver.application_plans.split(os.pathsep)]
    plans = {load_plan(directory).digest[:12]: directory for directory in directories}
    return ApplicationOptions(settings.registry, tuple(driver.applications.split(",")), plans=plans)


def _plans(settings: DriverSettings) -> list[Path]:
    root = settings.lambda_task_root
    if settings.plan:
        return [root / directory for directory in settings.plan.split(os.pathsep)]
    if not (root / PLAN_FILE).is_file():
        raise UsageError("no plan: put a plan directory's files into the driver's package, or set SERFER_PLAN")
    return [root]


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UsageError(f"{name} is {', '.join(known[:-1])} or {known[-1]}, not {value!r}")
    return value
