"""GET /v1/applications: what may be asked for in place of a model, and which variants there are to answer."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request

from serfer.api.auth.keys import may_use
from serfer.api.http.problems import Problem
from serfer.api.requests import check_parameters
from serfer.api.routes.openapi import problems
from serfer.api.service import Service
from serfer.applications.applications import Applications
from serfer.applications.pipelines import served_name
from serfer.applications.served import ServedApplication
from serfer.control.canary import Conduct
from serfer.core.variants import Application, Canary, Figure, Variant


@dataclass(frozen=True)
class ListedFigure:
    """A number, and whether it was measured or predicted."""

    value: float
    source: str


@dataclass(frozen=True)
class ListedAccuracy:
    """The share of correct answers on a validation set, with its 95% interval."""

    share: float
    low: float
    high: float
    images: int


@dataclass(frozen=True)
class ListedVariant:
    """A variant, its state as this driver sees it, and its figures.

    `release` is "live" or "canary", `places` are its states by place: "functions", or an instance's URL. `open` says
    whether this driver has opened it on functions, `in_flight` counts the queries that run on it from here. `loaded`
    instances have it in memory, `desired` are to have it.
    """

    name: str
    network: str
    version: int
    release: str
    place: str
    kind: str
    precision: str
    batch: int
    tasks: int
    places: dict[str, str]
    open: bool
    in_flight: int
    loaded: int
    desired: int
    accuracy: ListedAccuracy | None
    latency_ms: ListedFigure
    load_ms: ListedFigure
    peak_mb: ListedFigure
    qps: ListedFigure
    cost_usd: ListedFigure
    made: str


@dataclass(frozen=True)
class ListedConduct:
    """How queries ended in a canary's trial; the 95th percentile is the upper end of its bucket."""

    queries: int
    error_rate: float
    p95_ms: float | None


@dataclass(frozen=True)
class ListedCanary:
    """A canary, how it and the live release answered since it began, and what follows.

    A shadow answers copies, of which `agreed` of `compared` had the live answers' best classes, in this driver.
    """

    networks: dict[str, int]
    share: float
    since: str
    by: str
    shadow: bool
    verdict: str
    why: str
    canary: ListedConduct
    live: ListedConduct
    compared: int
    agreed: int


@dataclass(frozen=True)
class ListedApplication:
    """An application in short; `release` is the number of the live release."""

    name: str
    classes: int
    release: int
    networks: dict[str, int]
    variants: int


@dataclass(frozen=True)
class ListedApplications:
    """The applications that are served; the first one is meant where a query gives objectives alone."""

    applications: tuple[ListedApplication, ...]


@dataclass(frozen=True)
class ApplicationDetail(ListedApplication):
    """An application in full; `taken_back` says why the last canary that was worse is gone.

    `scaled` is why so many instances have the variants that have them, as was decided last; empty where nobody decides.
    """

    table: tuple[ListedVariant, ...]
    canary: ListedCanary | None
    taken_back: str
    scaled: str


def applications_router(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["applications"])

    @router.get("/applications", responses=problems(401, 403, 422, 429))
    async def list_applications(request: Request) -> ListedApplications:
        """List the applications that a query may name in place of a model."""
        check_parameters(request, ())
        applications = service.applications
        names = applications.names if applications else ()
        return ListedApplications(tuple(_row(_find(applications, name)) for name in names if may_use(request, name)))

    @router.get("/applications/{name}", responses=problems(401, 403, 404, 422, 429))
    async def one_application(request: Request, name: str) -> ApplicationDetail:
        """Return an application's variants, with their states and figures, and its canary."""
        check_parameters(request, ())
        return _detail(service.applications, _find(service.applications, name))

    return router


def detail_of(applications: Applications, name: str) -> ApplicationDetail:
    return _detail(applications, _find(applications, name))


def serving(applications: Applications | None, name: str) -> Applications:
    if applications is None or name not in applications.names:
        absent = applications.releases.why_absent(name) if applications else "no applications are served here"
        raise Problem(404, absent)
    return applications


def _find(applications: Applications | None, name: str) -> ServedApplication:
    return serving(applications, name).releases.find(name)


def _row(served: ServedApplication) -> ListedApplication:
    record, release = served.table.application, served.table.release
    return ListedApplication(record.name, record.classes, release.number, dict(release.networks), len(served.variants))


def _detail(applications: Applications | None, served: ServedApplication) -> ApplicationDetail:
    table = served.table
    sides = [("live", table.live), *([("canary", table.canary)] if table.canary else [])]
    rows = {
        name: _variant(applications, served, variant, release)
        for release, side in reversed(sides)
        for name, variant in side.variants.items()
    }
    return ApplicationDetail(
        **vars(_row(served)),
        table=tuple(sorted(rows.values(), key=lambda row: (row.cost_usd.value, row.name))),
        canary=_canary(served, table.trial) if table.trial else None,
        taken_back=_taken_back(table.application),
        scaled=served.scaled.reason if served.scaled else "",
    )


def _variant(
    applications: Applications | None, served: ServedApplication, variant: Variant, release: str
) -> ListedVariant:
    name, accuracy = served_name(served.name, variant.name), variant.accuracy
    desired = served.scaled.desired if served.scaled else {}
    cautions = applications.cautions(served.name, variant.name) if applications else {}
    return ListedVariant(
        name=variant.name,
        network=variant.network,
        version=variant.version,
        release=release,
        place=variant.place,
        kind=variant.kind,
        precision=variant.precision,
        batch=variant.batch,
        tasks=variant.tasks,
        places={place: state.value for place, state in served.places(variant.name).items()},
        open=applications is not None and applications.pipelines.is_open(name),
        in_flight=served.meter(variant.name).in_flight,
        loaded=applications.copies(served.name, variant.name) if applications else 0,
        desired=desired.get(variant.name, 0),
        accuracy=ListedAccuracy(accuracy.share, *accuracy.interval, accuracy.images) if accuracy else None,
        latency_ms=_figure(variant.latency_ms),
        load_ms=_figure(variant.load_ms),
        peak_mb=_figure(variant.peak_mb),
        qps=_figure(variant.qps),
        cost_usd=_figure(variant.usd),
        made="; ".join([variant.made, *(f"at {place}, {why}" for place, why in cautions.items())]),
    )


def _figure(figure: Figure) -> ListedFigure:
    return ListedFigure(figure.value, figure.source)


def _canary(served: ServedApplication, canary: Canary) -> ListedCanary:
    trial = served.trial
    return ListedCanary(
        dict(canary.networks),
        canary.share,
        canary.since,
        canary.by,
        canary.shadow,
        verdict=trial.verdict if trial else "goes on",
        why=trial.why if trial else "",
        canary=_conduct(trial.canary if trial else Conduct()),
        live=_conduct(trial.live if trial else Conduct()),
        compared=served.compared,
        agreed=served.agreed,
    )


def _conduct(conduct: Conduct) -> ListedConduct:
    return ListedConduct(conduct.queries, conduct.error_rate, conduct.p95_ms)


def _taken_back(record: Application) -> str:
    if (gone := record.taken_back) is None:
        return ""
    networks = ", ".join(f"{network}@{version}" for network, version in gone.networks.items())
    return f"{networks}: {gone.why}"
