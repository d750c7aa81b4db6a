"""A form becomes a job: what was uploaded is checked as far as is known at once, and the images are unpacked.

Imported where networks are registered alone: driver functions have no splitter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from math import prod
from pathlib import Path

from pydantic import ValidationError
from starlette.requests import Request

from serfer.api.http.body import ApiLimits
from serfer.api.http.problems import Problem
from serfer.api.http.streamed_form import FormFile, ReceivedForm, receive_form
from serfer.api.http.validation import first_fault
from serfer.api.jobs.processes import unpack
from serfer.api.jobs.registrations import NETWORK_NAME, RegistrationOptions, submission_id
from serfer.core.errors import InputError
from serfer.core.plan import MAX_ELEMENTS
from serfer.core.units import MIB
from serfer.plan_directory import NETWORK_SUFFIX
from serfer.registry import Registry
from serfer.settings import Settings
from serfer.splitter.network.description import read_labels, read_preprocess
from serfer.splitter.network.zoo import ZOO
from serfer.variants.making import MakingOptions
from serfer.variants.register import DEFAULT_MAX_LOSS, DEFAULT_MOST, check_options
from serfer.variants.submitted import SubmittedNetwork
from serfer.variants.unpacking import SET, UnpackJob
from serfer.wiring.network_file import outside_weights

_NETWORK, _VALIDATION, _PREPROCESS, _LABELS = "network", "validation", "preprocess", "labels"


async def receive(request: Request, folder: Path, settings: Settings) -> ReceivedForm:
    """Read the form of a registration, its files into a folder; raises Problem as `receive_form`."""
    most = settings.api_max_register_bytes
    limits = ApiLimits(max_body_bytes=most, body_timeout_s=settings.api_body_timeout_s)
    files = {_NETWORK: most, _VALIDATION: most, _PREPROCESS: MIB, _LABELS: MIB}
    return await receive_form(request, folder, files, limits)


def read_form(
    form: ReceivedForm, application: str, registry: Registry, by: str, folder: Path, settings: Settings
) -> tuple[str, SubmittedNetwork]:
    """Return the id of a submission and its network; its images are to be unpacked below the folder.

    Raises Problem 422 and InputError for what is wrong with it, as far as that is known without them.
    """
    try:
        options = RegistrationOptions.model_validate(form.values)
    except ValidationError as error:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, first_fault(error)) from None
    network, name = _network(options, form.files.get(_NETWORK))
    if options.shape and prod(options.shape) > MAX_ELEMENTS:
        raise _refused(f"size {options.size} is too large: an image may have {MAX_ELEMENTS:,} values")
    _check_description(form.files, folder, application, registry)
    most = DEFAULT_MOST if options.most is None else options.most
    max_loss = DEFAULT_MAX_LOSS if options.max_loss is None else options.max_loss
    making = (most, max_loss, options.latency_ms, "auto", options.instance, options.usd_per_hour)
    check_options(application, MakingOptions(*making, settings))
    submitted = SubmittedNetwork(
        application=application,
        network=network,
        name=name,
        validation=str(folder / "images") if _VALIDATION in form.files else None,
        registry=str(registry),
        by=by,
        most=most,
        max_loss=max_loss,
        max_image_bytes=settings.max_image_bytes,
        max_image_pixels=min(settings.max_image_pixels, settings.api_max_pixels),
        size=options.shape,
        preprocess=_path(form.files, _PREPROCESS),
        labels=_path(form.files, _LABELS),
        **options.model_dump(include={"latency_ms", "instance", "usd_per_hour", "output"}),
    )
    sent = {each: file.sha256 for each, file in form.files.items()}
    asked = {**options.model_dump(mode="json"), "name": name, "files": sent, "application": application}
    return submission_id(asked), submitted


async def unpack_images(network: SubmittedNetwork, folder: Path, settings: Settings) -> SubmittedNetwork:
    """Unpack the images of an upload, if it has any, and return its network with their folder; raises InputError."""
    if network.validation is None:
        return network
    job = UnpackJob(str(folder / _VALIDATION), network.validation, settings.api_max_register_bytes, SET)
    return replace(network, validation=(await unpack(job)).folder)


def _network(options: RegistrationOptions, file: FormFile | None) -> tuple[str, str]:
    """Return the network as `register` takes it, and its name."""
    if (options.network is None) == (file is None):
        raise _refused("the form has no network, or two: send network=@FILE.onnx, or network=NAME of the zoo")
    if file is None:
        network = options.network or ""
        if network not in ZOO:
            known = ", ".join(ZOO)
            raise _refused(f"no network {network!r} in the zoo: there is {known}; send others as ONNX files")
        return network, options.name or network
    name = options.name or file.filename.removesuffix(NETWORK_SUFFIX)
    if not NETWORK_NAME.fullmatch(name):
        raise _refused("the file's name cannot name a network: give name, 1 to 32 letters, digits and ._-")
    path = file.path.with_suffix(NETWORK_SUFFIX)
    file.path.rename(path)
    if next(outside_weights(path), None) is not None:
        raise _refused(
            "the network has its weights in other files: send one file, as torch.onnx.export(..., external_data=False) "
            "writes it"
        )
    return str(path), name


def _check_description(files: Mapping[str, FormFile], folder: Path, application: str, registry: Registry) -> None:
    """Refuse a description that cannot be, or labels that are not as many as the application has classes."""
    try:
        if _PREPROCESS in files:
            read_preprocess(files[_PREPROCESS].path)
        labels = read_labels(files[_LABELS].path) if _LABELS in files else ()
    except InputError as error:
        raise InputError(str(error).replace(f"{folder}/", "")) from None
    known = registry.application(application)
    if known is not None and labels and len(labels) != known.classes:
        raise InputError(
            f"labels names {len(labels)} classes, application {application} has {known.classes}: register the network "
            "in another application"
        )


def _path(files: Mapping[str, FormFile], name: str) -> str | None:
    return str(files[name].path) if name in files else None


def _refused(why: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, why)
