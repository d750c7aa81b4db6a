"""`register` in the public API: a network's variants are made, measured and put into a registry."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from serfer.build_cache import forget_unused
from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import InputError, NoRegistryError, RegistrationLostError, SerferError, UsageError
from serfer.core.options import with_values
from serfer.core.plan import FORMAT, Plan, Preprocess
from serfer.core.variants import CUDA, NAME, Application, NetworkVersion, caution
from serfer.extras import named_extras
from serfer.images import Recipe
from serfer.instance.network import instruction_sets
from serfer.pipeline.labelled.labels import LabelledImages, listed, resolved
from serfer.pipeline.query import preprocess_of
from serfer.registry import open_registry
from serfer.registry.registration import RegistrationRequest, Registrations, RegistrationState
from serfer.registry.registry import Registry
from serfer.settings import Settings, load_settings
from serfer.variants.images import write_images
from serfer.variants.instances import instance_type
from serfer.variants.making import Making
from serfer.variants.plans import NetworkOptions, read_network
from serfer.variants.register_options import RegisterOptions
from serfer.variants.steps import Steps, alone, claimed, heartbeats, owner_name

_LONGEST_NETWORK: Final = 32  # of 64 characters of a variant's name
_UNNAMED: Final = "network"


@dataclass(frozen=True)
class Registered:
    """A network version in a registry; `made` where this call has made it, and not one before or beside it.

    `live` says whether it answers the application's queries: the first version of a network does, later ones wait.
    """

    registry: str
    application: str
    registration: str
    version: NetworkVersion
    made: bool
    live: bool


@named_extras()
def register(  # noqa: PLR0913 - what a user may choose, each with a default
    network: Any,  # noqa: ANN401 - an nn.Module, or a path or name as text
    app: str,
    validation: Path | str | None = None,
    *,
    name: str | None = None,
    registry: str | None = None,
    by: str = "Python",
    example: Any | None = None,  # noqa: ANN401 - an array or tensor
    preprocess: Preprocess | None = None,
    labels: Sequence[str] = (),
    activation: str | None = None,
    settings: Settings | None = None,
    progress: Callable[[str], None] | None = None,
    options: RegisterOptions | None = None,
    **values: Any,  # noqa: ANN401 - of RegisterOptions
) -> Registered:
    """Make variants of a network, measure them, and register them under an application, all at once or not at all.

    `network` is what `split` takes, or a plan directory; `example`, `preprocess`, `labels` and `activation` describe it
    as `split` has them. `validation` is a directory of labelled images: a folder for each class, or a labels.csv
    (file,label) next to the images. Without it, as for a detector, accuracy is not known, and variants are those that
    answer as the network does. `name` is the network's in the application, by default what its file is called;
    `registry` a directory or URL, SERFER_REGISTRY unless given; `by` says who does it, for the record.

    `values` are fields of `serfer.RegisterOptions` by name, in place of those of `options`. Variants are plans on the
    predicted frontier of latency and dollars, and the whole network on a device by precision and batch size.

    The same network with the same images and options is one registration: where another process is at it, this waits;
    what was done before a process was killed is not done again. Where it is done, and a variant in 8 bits was measured
    on another kind of processor, this makes another version, measured here. Raises InputError for labels that the
    network does not know, missing or damaged images, and another number of classes than the application's.
    """
    say = progress or (lambda _: None)
    settings = settings or load_settings()
    network_name = _network_name(network, name)
    options, facts = with_values(RegisterOptions, options, values), settings.facts()
    if not NAME.fullmatch(app):
        raise UsageError(f"--app {app!r:.80} cannot name an application: 1 to 64 letters, digits and ._-")
    instance_type(options, "cpu", facts.instances)  # refuses one without a price
    url = registry or settings.registry
    if url is None:
        raise UsageError("which registry? Give --registry, or set SERFER_REGISTRY")
    described = NetworkOptions(example, preprocess, labels, activation)
    with _work_folder(settings) as (folder, work):
        application, directory = None, Path(validation) if validation is not None else None
        with suppress(NoRegistryError):  # it is made when there is something to put into it
            application = open_registry(url, create=False).application(app)
        listing = listed(directory) if directory else []  # what is wrong with it is said before the network is read
        base = read_network(network, network_name, described, facts, work, say, labelled=directory is not None)
        if base.assumed:
            say(base.assumed)
        images = resolved(directory, listing, base.plan) if directory else None
        labels_digest = _labels_digest(base.plan)
        _check_application(application, base.plan, labels_digest, network_name)
        say("reading validation images")
        recorded = images.validation() if images else None
        seen = recorded.digest if recorded else ""
        kept = open_registry(url)
        request = RegistrationRequest(app, network_name, base.digest, seen, _settings(options, base.plan))
        registrations = Registrations(kept, owner_name(folder))
        request = _measured_here(registrations, request, instruction_sets("cpu"))
        with alone(folder, request.id, say):
            found = claimed(registrations, request, by, say)
            if found.state is RegistrationState.DONE:
                return _registered(kept, app, found.id, network_name, made=False)
            with _ended(registrations, found.id), heartbeats(registrations, found.id):
                recipe = Recipe(preprocess_of(base.plan), base.plan.input, settings.image_limits())
                files = write_images(images, recipe, work / "images", say) if images else None
                steps = Steps(registrations, found, say)
                remarks = Making(base, files, options, settings, kept, steps, work, say).run()
                registrations.finish(
                    found.id,
                    classes=_classes(base.plan),
                    labels=labels_digest,
                    validation=recorded,
                    remarks=(*filter(None, [base.assumed, base.kept]), *remarks, *_absent(images, base.plan)),
                )
        return _registered(kept, app, found.id, network_name, made=True)


def _measured_here(
    registrations: Registrations, request: RegistrationRequest, here: tuple[str, ...]
) -> RegistrationRequest:
    """Return a request; one of its own for this processor where what it asks for is done, in 8 bits, on another kind.

    `here` are this processor's instruction sets. Answers in 8 bits depend on these, and so does their accuracy.
    """
    done = registrations.read(request.id)
    if done is None or done.state is not RegistrationState.DONE or not here:
        return request
    quantised = [each for each in done.variants if each.precision == "int8" and each.measured_on != (CUDA,)]
    if not any(caution(variant.measured_on, here) for variant in quantised):
        return request
    settings = json.dumps({**json.loads(request.settings), "measured_on": here}, sort_keys=True)
    return replace(request, settings=settings)


def _registered(kept: Registry, app: str, registration: str, network: str, *, made: bool) -> Registered:
    application = kept.known(app)
    version = next((found for found in application.networks if found.registration == registration), None)
    if version is None:
        raise InputError(f"{network} was taken out of application {app} meanwhile: register it again")
    live = application.live_release
    answers = live is not None and live.networks.get(version.network) == version.version
    return Registered(str(kept), app, registration, version, made, answers)


@contextmanager
def _ended(registrations: Registrations, registration: str) -> Iterator[None]:
    """End a registration that fails as failed, and leave one that is interrupted for the next process."""
    try:
        yield
    except RegistrationLostError:
        raise
    except SerferError as error:
        registrations.fail(registration, str(error))
        raise
    except BaseException:
        registrations.abandon(registration)
        raise


@contextmanager
def _work_folder(settings: Settings) -> Iterator[tuple[Path, Path]]:
    """Yield the folder of this user's registrations, and one in it for this one; killed processes' go after a week."""
    folder = settings.cache_dir / "registrations"
    folder.mkdir(0o755, parents=True, exist_ok=True)
    forget_unused(folder)
    work = Path(tempfile.mkdtemp(prefix=".serfer-work-", dir=folder))
    try:
        yield folder, work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _network_name(network: Any, name: str | None) -> str:  # noqa: ANN401 - as register takes it
    from serfer.splitter.network.named_models import is_named  # noqa: PLC0415 - the base is installed without it

    text = str(network) if isinstance(network, Path | str) or is_named(network) else type(network).__name__.lower()
    given = name or Path(text.rpartition(":")[2].removesuffix(".onnx")).resolve().name or _UNNAMED
    if not NAME.fullmatch(given) or len(given) > _LONGEST_NETWORK:
        raise UsageError(
            f"{given!r:.80} cannot name a network: give --name, 1 to {_LONGEST_NETWORK} letters, digits and ._-"
        )
    return given


def _settings(options: RegisterOptions, plan: Plan) -> str:
    """Return what decides the result, as text; the plans' format too, so that a new one has all plans made again."""
    described = {option.name: getattr(options, option.name) for option in fields(RegisterOptions)}
    described |= {"plan_format": FORMAT, "activation": plan.activation, "preprocess": unstructure(plan.preprocess)}
    described |= {"detection": unstructure(plan.detection)} if plan.detection else {}
    return json.dumps(described, sort_keys=True)


def _classes(plan: Plan) -> int:
    return plan.output.width if plan.classifies else max(1, len(plan.labels))


def _labels_digest(plan: Plan) -> str:
    outputs = [] if plan.classifies else unstructure([plan.output_tensors, plan.detection])
    return hashlib.sha256(json.dumps([*plan.labels, *outputs]).encode()).hexdigest()


def _check_application(application: Application | None, plan: Plan, labels: str, network: str) -> None:
    classes = _classes(plan)
    if application is None or (application.classes, application.labels) == (classes, labels):
        return
    if not plan.classifies:
        raise InputError(
            f"{network} gives other outputs, or other classes, than the networks of application {application.name}: "
            "give another --app, or --labels and --output as they were"
        )
    what = f"has {classes} classes" if application.classes != classes else "names its classes in another way"
    raise InputError(
        f"{network} {what}, application {application.name} has {application.classes}: its networks share their "
        "classes; give another --app, or --labels as they were"
    )


def _absent(images: LabelledImages | None, plan: Plan) -> list[str]:
    if images is None:
        return []
    absent = images.absent
    names = [plan.labels[index] if plan.labels else str(index) for index in absent[:3]]
    return [f"no image of {len(absent)} of the {images.classes} classes ({', '.join(names)})"] if absent else []
