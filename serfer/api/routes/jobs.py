"""POST /v1/jobs: many images as one offline job, which yields to online queries."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import Field

from serfer.api.http.problems import Problem
from serfer.api.http.uploads import Upload, check_format
from serfer.api.jobs.offline import OfflineJob, OfflineJobs, OfflineRecord
from serfer.api.jobs.runner import JobState
from serfer.api.questions import ObjectiveParameters, Question, asked_of, run_question
from serfer.api.requests import IDENTIFIER, check_parameters, client_of, owner_of
from serfer.api.routes.classify import check_classifies
from serfer.api.routes.openapi import problems
from serfer.api.service import Service, ServiceQuery
from serfer.core.dataclass_codec import unstructure
from serfer.drivers.driver import RequestContext
from serfer.pipeline.query import Wanted

_ALLOWED_S: Final = 120.0
_LINES: Final = "application/jsonl"


class JobParameters(ObjectiveParameters):
    """The query parameters of a job."""

    top_k: int = Field(5, ge=1, le=1000, description="How many classes at most, best first.")
    images: str = Field(max_length=500, description="The prefix of its images, below the place in SERFER_API_JOBS.")


@dataclass(frozen=True)
class OfflineStatus:
    """How far an offline job is.

    `state` is "queued", "running", "done", "failed" or "interrupted". Of the `images` so many are `answered`, and so
    many of these `failed`. `paused` says why nothing is asked now.
    """

    id: str
    model: str
    state: str
    created: str
    images: int
    answered: int
    failed: int
    paused: str
    detail: str


def jobs_router(service: Service, most_bytes: int) -> APIRouter:
    """Return the routes of offline jobs, whose images have at most `most_bytes`; `service.jobs` may be None."""
    router = APIRouter(prefix="/v1/jobs", tags=["classify"])

    @router.post(
        "",
        status_code=202,
        responses=problems(401, 403, 404, 422, 429, 503),
        openapi_extra={"parameters": JobParameters.described()},
    )
    async def begin(request: Request, response: Response) -> OfflineStatus:
        """Classify images of an object store when online queries leave room: 202, and Location says how far it is."""
        parameters, jobs = JobParameters.of(request.scope["query_string"]), _jobs(service)
        asked = asked_of(service, parameters, secrets.token_hex(8))
        name = asked.application if asked else service.name(parameters.model)
        if asked is None:
            check_classifies(service.pipelines[name].plan, name)
        images = await asyncio.to_thread(jobs.images.names, parameters.images)
        client, wanted = client_of(request.scope), Wanted(parameters.top_k, classes=True)

        async def answer(image: str) -> dict[str, Any]:
            data = await asyncio.to_thread(jobs.images.read, image, most_bytes)
            check_format(image, data)
            context, deadline = RequestContext(secrets.token_hex(8)), time.monotonic() + _ALLOWED_S
            with service.load.offline(), service.admission.bytes.hold(client) as held:
                query = ServiceQuery(name, deadline, _ALLOWED_S, context, client, held=held)
                question = Question(query, wanted, explain=False, asked=asked)
                _, report = await run_question(service, question, [Upload(image, data)])
            return report.as_dict()

        record = await jobs.begin(OfflineJob(owner_of(request), name, images, answer))
        response.headers["Location"] = f"/v1/jobs/{record.id}"
        response.headers["Retry-After"] = "2"
        return _status(record)

    @router.get("/{job}", responses=problems(401, 403, 404, 422, 429, 503))
    async def look(request: Request, job: str) -> OfflineStatus:
        """Return how far a job of one's own is."""
        check_parameters(request, ())
        return _status(await _found(_jobs(service), request, job))

    @router.get(
        "/{job}/results",
        response_class=Response,
        responses={
            200: {"content": {_LINES: {}}, "description": "A report for each image, JSON lines."},
            **problems(401, 403, 404, 409, 422, 429, 503),
        },
    )
    async def results(request: Request, job: str) -> Response:
        """Return the reports of a job that has ended, one for each image, as POST /v1/classify gives them."""
        check_parameters(request, ())
        jobs = _jobs(service)
        found = await _found(jobs, request, job)
        lines = await jobs.lines(owner_of(request), job)
        if lines is None:
            raise Problem(409, f"the job is {_status(found).state}: its results are there at its end")
        return Response(lines, media_type=_LINES)

    @router.delete("/{job}", status_code=204, response_model=None, responses=problems(401, 403, 404, 422, 429, 503))
    async def cancel(request: Request, job: str) -> None:
        """Stop a job of one's own wherever it runs, and forget it with its results."""
        check_parameters(request, ())
        jobs = _jobs(service)
        await _found(jobs, request, job)
        await jobs.cancel(owner_of(request), job)

    return router


def _jobs(service: Service) -> OfflineJobs:
    if service.jobs is None:
        raise Problem(404, "this service takes no offline jobs: it was started without SERFER_API_JOBS")
    return service.jobs


async def _found(jobs: OfflineJobs, request: Request, job: str) -> OfflineRecord:
    found = await jobs.find(owner_of(request), job) if IDENTIFIER.fullmatch(job) else None
    if found is None:
        raise Problem(404, "no such job: it never was, has expired, was deleted, or is another key's")
    return found


def _status(record: OfflineRecord) -> OfflineStatus:
    plain = unstructure(record)
    del plain["updated"]
    plain["paused"] = record.paused if record.state.is_open else ""
    plain["state"] = JobState.INTERRUPTED.value if record.state is JobState.SILENT else plain["state"]
    return OfflineStatus(**plain)
