"""`serfer package`: a plan becomes a directory that `sam build` and `sam deploy` take.

    plan directory ─┐   ┌ template.yaml        what there will be: the plan's functions, store, drivers, alarms
    pinned wheels ──┼──▶│ layers/, driver/     code: the workers' layer, the drivers' layer, the plans that drivers read
    our own code ───┘   │ plans/DIGEST/        one generation: its functions, their weights, its state machine
                        │ weights/             what functions fetch, in pieces that a package can hold
                        │ samconfig.toml       settings of SAM CLI; the user's once they altered it
                        └ deployment.json, sbom.cdx.json

Where a deployment of the same name lies in the directory already, its plan stays in the new one as the previous
generation: it still has functions while drivers change over, and can be gone back to. It goes with the next plan.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from sam.build.fetch import fetch_plan
from sam.build.layers import (
    check_size,
    driver_layer,
    function_directory,
    gpu_layer,
    image_directory,
    piece_directory,
    weights_layer,
    worker_layer,
)
from sam.build.pins import GPU
from sam.build.sbom import SBOM, dump_sbom
from sam.build.tree import Built, combined_digest, link_tree, seal
from sam.cost.scenario import Profile, check_pool, make_scenario
from sam.deployment import (
    Deployment,
    dump_deployment,
    is_replaceable,
    load_deployment,
    load_packaged_plan,
    plan_directory,
)
from sam.options import RECORD, TEMPLATE, Options, digest12, images_of, is_build
from sam.quotas import check_deployable, check_template
from sam.samconfig import FILE as SAMCONFIG
from sam.samconfig import read_samconfig, samconfig
from sam.stacks import our_stack
from sam.template.functions import state_machine
from sam.template.template import SCENARIO, dump, make_template
from sam.weights import Piece, fetched, pieces
from serfer import __version__
from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.plan import CONTAINER, Artefact, Plan
from serfer.core.plan.layout import PLAN_FILE
from serfer.plan_directory import check_artefacts, load_plan
from serfer.settings import Settings
from splitter.plan_dir.output_directory import appearing_whole, place_for

MACHINE = "statemachine.asl.json"
_GENERATIONS, _DRIVER, _LAYERS, _WEIGHTS = "plans", "driver", "layers", "weights"
_OURS = frozenset({TEMPLATE, SAMCONFIG, RECORD, SBOM, _GENERATIONS, _DRIVER, _LAYERS, _WEIGHTS, ".aws-sam"})
_DRIVER_IDS = {"function": "DriverFunction", "fleet": "DriverPlans"}


@dataclass(frozen=True)
class _Earlier:
    """The generation that a new one takes the place of: its plan, and where it lies.

    That is a BUILD directory, or a plan directory with what its functions have.
    """

    plan: Plan
    build: Path | None = None
    directory: Path | None = None


def package(
    directory: Path,
    out: Path,
    options: Options,
    settings: Settings,
    *,
    keep_previous: bool = True,
    previous_of: str | None = None,
    profile: Profile | None = None,
    progress: Callable[[str], None],
) -> Deployment:
    """Write the BUILD directory of a plan directory, whole or not at all, and return what was written.

    Unless `keep_previous` is False, the plan that a deployment of the same name in `out` has becomes the previous one.
    With `previous_of`, it is the plan that this stack of the deployment's region serves, which is downloaded from it
    unless `out` has it.
    `profile` says how fast an instance of the GPU pool is, where there is to be one.
    Raises UsageError for choices that do not go together or that AWS would refuse, PlanError for a plan directory that
    is not whole, ModelError for a function that is too large, InputError for an `out` that holds something else,
    UnavailableError for wheels that cannot be had, or a stack that cannot be read.
    """
    options.check()
    plan = load_plan(directory)
    check_artefacts(plan, directory)
    check_deployable(plan, options, settings.facts())
    check_pool(plan, options, profile)
    place = place_for(out, [directory], check_build_place)
    if place.is_relative_to(directory.resolve()):
        raise InputError(
            f"{out} lies in the plan directory {directory}, which holds a plan alone; choose another --out"
        )
    with tempfile.TemporaryDirectory(prefix="serfer-") as scratch:
        if previous_of is not None:
            earlier = _earlier_of(previous_of, place, plan, options, Path(scratch), progress)
        else:
            earlier = _earlier(place, plan, options) if keep_previous else None
        with appearing_whole(place, check_build_place) as build:
            deployment = _Writer(build, options, settings, profile, progress).write(plan, directory, earlier)
            (build / SAMCONFIG).write_bytes(_settings_of_sam(place, deployment))
    return deployment


def check_build_place(place: Path) -> None:
    """Refuse what is not a BUILD directory, and one beside which anything else lies: all of it would be deleted."""
    if not place.exists():
        return
    if not place.is_dir():
        raise InputError(f"{place} is not a directory; choose another --out")
    inside = {path.name for path in place.iterdir()}
    if inside and not is_replaceable(place):
        raise InputError(f"{place} exists and was not written by serfer package; choose another --out")
    if foreign := sorted(inside - _OURS):
        raise InputError(
            f"{place} holds {foreign[0]}, which serfer package did not write and would delete: move it, or choose "
            "another --out"
        )


def _earlier(place: Path, plan: Plan, options: Options) -> _Earlier | None:
    """Return the generation before this plan: what was current, or what was previous where the plan is the same."""
    if not is_build(place):
        return None
    try:
        deployment = load_deployment(place)
    except InputError as error:
        raise InputError(
            f"{place} cannot be updated: another version wrote its {RECORD}, or it was altered: package with "
            "--no-previous, or choose another --out"
        ) from error
    if deployment.options.name == options.name and deployment.options.store != options.store:
        raise UsageError(
            f"--store {options.store}: {place} was packaged for {deployment.options.store}, and a stack that changes "
            "its store fails what is under way and leaves the old one behind: choose another --name, or another --out"
        )
    others = [digest for digest in deployment.plans if digest != digest12(plan)]
    if deployment.options.name != options.name or not others:
        return None
    plan = load_packaged_plan(place, others[0])
    kept = [f"{_GENERATIONS}/{others[0]}", *(f"{_WEIGHTS}/{piece.name}" for _, piece in _pieces(plan))]
    if not all((place / name).is_dir() for name in kept):
        raise InputError(f"{place} has lost its plan {others[0]}: package with --no-previous, or choose another --out")
    return _Earlier(plan, build=place)


def _earlier_of(
    stack: str, place: Path, plan: Plan, options: Options, scratch: Path, progress: Callable[[str], None]
) -> _Earlier | None:
    """Return the generation that a stack serves, or the one before where it serves this plan; None if it has no other.

    Raises UsageError for a stack that is missing, is not ours, or has another store.
    """
    import boto3  # noqa: PLC0415 - only for --previous-of

    session = boto3.session.Session(region_name=options.region)
    try:
        deployed = our_stack(session.client("cloudformation"), stack)
        if deployed.store and deployed.store != options.store:
            raise UsageError(f"--store {options.store}: {stack} has the store {deployed.store}; choose another --name")
        others = [digest for digest in (deployed.serving, *deployed.plans) if digest and digest != digest12(plan)]
        if not others:
            return None
        if (place / _GENERATIONS / others[0]).is_dir():
            return _Earlier(load_packaged_plan(place, others[0]), build=place)
        earlier = fetch_plan(deployed, others[0], session, scratch, progress)
    except (BotoCoreError, ClientError) as error:
        raise UnavailableError(f"--previous-of {stack}: {error}") from error
    return _Earlier(earlier, directory=scratch)


def _pieces(plan: Plan) -> list[tuple[Artefact, Piece]]:
    """Return the weights that a plan's functions fetch, with each of their pieces."""
    return [(weights, piece) for weights in fetched([plan]) for piece in pieces(weights)]


def _keep_pool(earlier: _Earlier, build: Path) -> bool:
    """Copy what the pool of the plan before is used by, as it was packaged; say whether it had a pool."""
    if earlier.build is None:  # a stack's functions do not have it
        return False
    digest = digest12(earlier.plan)
    before, place = plan_directory(earlier.build, digest), plan_directory(build, digest)
    names = (SCENARIO, earlier.plan.unsplit.path)
    if not all((before / name).is_file() for name in names):
        return False
    for name in names:
        shutil.copyfile(before / name, place / name)
    return True


def _settings_of_sam(place: Path, deployment: Deployment) -> bytes:
    """Return SAM CLI's settings: those that `place` has, unless they are what its earlier choices gave."""
    kept, new = read_samconfig(place), _first_settings(deployment)
    if kept is None:
        return new
    try:
        unaltered = kept == _first_settings(load_deployment(place))
    except InputError:  # of another version
        unaltered = False
    return new if unaltered else kept


def _first_settings(deployment: Deployment) -> bytes:
    return samconfig(deployment.options, images=bool(deployment.images))


@dataclass(frozen=True)
class _Writer:
    """Writes into a BUILD directory."""

    build: Path
    options: Options
    settings: Settings
    profile: Profile | None
    progress: Callable[[str], None]

    def write(self, plan: Plan, directory: Path, earlier: _Earlier | None) -> Deployment:
        """Write everything but SAM CLI's settings."""
        cache = self.settings.cache_dir
        plans = [plan, *([earlier.plan] if earlier else [])]
        self.progress("collecting the workers' dependencies")
        worker = worker_layer(self.build / _LAYERS / "worker", self.options, cache)
        self.progress("collecting the drivers' dependencies")
        driver = driver_layer(self.build / _LAYERS / "driver", self.options, cache)
        layers = {f"{_LAYERS}/worker": worker, f"{_LAYERS}/driver": driver}
        if self.options.gpu:
            self.progress("collecting what GPU instances compute with")
            layers[f"{_LAYERS}/{GPU}"] = gpu_layer(self.build / _LAYERS / GPU, self.options, cache)
        self.progress(f"writing {len(plan.functions)} functions")
        sizes = self._generation(plan, directory, worker)
        if earlier and earlier.directory:
            self._generation(earlier.plan, earlier.directory, worker)
        elif earlier and earlier.build:
            name = digest12(earlier.plan)
            link_tree(earlier.build / _GENERATIONS / name, self.build / _GENERATIONS / name)
        self._weights(plan, directory)
        if earlier:
            self._weights(earlier.plan, earlier.directory, earlier.build)
        pooled = self._drivers(plans, directory, earlier)
        for each in plans:
            self._machine(each)
        template = make_template(self.options, plans, pooled=pooled)
        check_template(template, self.settings.facts())
        (self.build / TEMPLATE).write_text(dump(template), encoding="utf-8")
        (self.build / SBOM).write_text(dump_sbom(self.options, plans, cache), encoding="utf-8")
        names = tuple(map(digest12, plans))
        compiled = worker.compiled_by is not None
        digest = combined_digest(self.build, layers)
        weights = {file.sha256: file.bytes for file in fetched(plans)}
        images = tuple(image for each in plans for image in images_of(each))
        deployment = Deployment(__version__, self.options, names, compiled, sizes, digest, weights, images)
        (self.build / RECORD).write_text(dump_deployment(deployment), encoding="utf-8")
        return deployment

    def _generation(self, plan: Plan, directory: Path, worker: Built) -> dict[str, int]:
        """Write a plan's functions and their weights; return the bytes of each with its layers, by "STAGE-PART"."""
        place = self.build / _GENERATIONS / digest12(plan)
        facts, sizes = self.settings.facts().functions, {}
        for stage, number in plan.functions:
            name = f"{stage}-{number}"
            if plan.stages[stage].weights_in == CONTAINER:
                layer, base = self.build / _LAYERS / "worker", self.options.builds_on
                own = [image_directory(place / "images" / name, plan, directory, stage, number, layer, base)]
                sizes[name] = check_size(name, worker, own, facts.image_limit)
                continue
            own = [
                function_directory(place / "functions" / name, plan, directory, stage, number),
                weights_layer(place / "weights" / name, plan, directory, stage, number),
            ]
            sizes[name] = check_size(name, worker, own, facts.package_limit)
        return sizes

    def _weights(self, plan: Plan, directory: Path | None, build: Path | None = None) -> None:
        """Write the pieces of what a plan's functions fetch, of a plan directory or as another BUILD has them."""
        for weights, piece in _pieces(plan):
            place = self.build / _WEIGHTS / piece.name
            if place.exists():  # of the other plan
                continue
            if directory:
                piece_directory(place, piece, directory / weights.path)
            elif build:
                link_tree(build / _WEIGHTS / piece.name, place)

    def _drivers(self, plans: list[Plan], directory: Path, earlier: _Earlier | None) -> set[str]:
        """Write what drivers read of the plans, everything but weights; return which of them have a pool."""
        for plan in plans:
            place = plan_directory(self.build, digest12(plan))
            place.mkdir(parents=True)
            in_image = plan.stages[0].weights_in == CONTAINER
            first = "images/0-0/function" if in_image else "functions/0-0"
            shutil.copyfile(self.build / _GENERATIONS / digest12(plan) / first / PLAN_FILE, place / PLAN_FILE)
        pooled = set()
        if self.options.gpu and self.profile:
            pooled.add(digest12(plans[0]))
            self._pool(plans[0], directory)
            if earlier and _keep_pool(earlier, self.build):
                pooled.add(digest12(earlier.plan))
        seal(self.build / _DRIVER, _DRIVER_IDS[self.options.drivers])
        return pooled

    def _pool(self, plan: Plan, directory: Path) -> None:
        """Write what a plan's pool is used by, and the graph of the whole network, whose weights the stages have."""
        assert self.profile is not None  # noqa: S101 - the caller has checked
        place = plan_directory(self.build, digest12(plan))
        scenario = make_scenario(plan, self.options, self.settings.facts(), self.profile)
        (place / SCENARIO).write_text(scenario, encoding="utf-8")
        shutil.copyfile(directory / plan.unsplit.path, place / plan.unsplit.path)

    def _machine(self, plan: Plan) -> None:
        """Write a plan's state machine, where there is to be one; an earlier one may be of another kind."""
        file = self.build / _GENERATIONS / digest12(plan) / MACHINE
        file.unlink(missing_ok=True)
        if self.options.by_state_machine:
            file.write_text(json.dumps(state_machine(plan, self.options), indent=2) + "\n", encoding="utf-8")
