"""`serfer deploy package`: a plan becomes a directory that `sam build` and `sam deploy` take.

    plan directory ─┐   ┌ template.yaml        what there will be: the plans' functions, store, drivers, alarms
    pinned wheels ──┼──▶│ layers/, driver/     code: the workers' layer, the drivers' layer, the plans that drivers read
    our own code ───┘   │ plans/DIGEST/        one generation: its functions, their weights, its state machine
                        │ weights/             what functions fetch, in pieces that a package can hold
                        │ health/              answers health checks, where the driver function runs the plan itself
                        │ samconfig.toml       settings of SAM CLI; the user's once they altered it
                        └ deployment.json, sbom.cdx.json

Where a deployment of the same name lies in the directory already, its plan stays in the new one as the previous
generation: it still has functions while drivers change over, and can be gone back to. It goes with the next plan.
Each of the two may have a cold plan (DIR/cold), whose functions are deployed beside its own, and plans of other
variants of the applications that drivers serve.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from serfer import __version__
from serfer.control.instance_profile import Profile
from serfer.control.scenario import read_scenario
from serfer.core.costs.account import AccountQuotas
from serfer.core.errors import InputError, PlanError, UnavailableError, UsageError
from serfer.core.plan import CONTAINER, Artefact, Plan
from serfer.plan_directory import COLD_DIRECTORY, check_artefacts, load_cold_plan, load_plan, plan_files, write_plan
from serfer.sam.build import layers
from serfer.sam.build.fetch import fetch_plan
from serfer.sam.build.sbom import SBOM, dump_sbom
from serfer.sam.build.tree import Built, link_tree, seal, tree_digest
from serfer.sam.build.wheels import GPU
from serfer.sam.cost.driver_runs import decide, require
from serfer.sam.cost.scenario import check_pool, make_scenario
from serfer.sam.deployment import (
    COLD_FUNCTIONS,
    GENERATIONS,
    Deployment,
    dump_deployment,
    is_replaceable,
    load_deployment,
    load_packaged_cold,
    load_packaged_plan,
    plan_directory,
)
from serfer.sam.options import MOST_BESIDE, RECORD, TEMPLATE, Options, digest12, images_of, is_build
from serfer.sam.quotas import check_deployable, check_template
from serfer.sam.samconfig import FILE as SAMCONFIG
from serfer.sam.samconfig import read_samconfig, samconfig
from serfer.sam.stacks import our_stack
from serfer.sam.template.functions import state_machine
from serfer.sam.template.template import SCENARIO, dump, make_template
from serfer.sam.weights import Piece, fetched, pieces
from serfer.settings import Settings
from serfer.splitter.plan_dir.output_directory import appearing_whole, place_for

MACHINE = "statemachine.asl.json"
_DRIVER, _LAYERS, _WEIGHTS, _HEALTH = "driver", "layers", "weights", "health"
_OURS = frozenset({TEMPLATE, SAMCONFIG, RECORD, SBOM, GENERATIONS, _DRIVER, _LAYERS, _WEIGHTS, _HEALTH, ".aws-sam"})
_RUNNER = "runner"
_DRIVER_IDS = {"function": "DriverFunction", "fleet": "DriverPlans"}


@dataclass(frozen=True)
class _Source:
    """A plan, and where it lies: in a plan directory with what its functions have, or packaged in a BUILD directory."""

    plan: Plan
    directory: Path | None = None
    build: Path | None = None


@dataclass(frozen=True)
class _Generation:
    """What drivers use: a plan, its cold plan, and the plans of other variants of applications."""

    main: _Source
    cold: _Source | None = None
    beside: tuple[_Source, ...] = ()

    @property
    def sources(self) -> list[_Source]:
        return [self.main, *([self.cold] if self.cold else []), *self.beside]


def package(  # noqa: PLR0913 - what can be chosen, by name
    directory: Path,
    out: Path,
    options: Options,
    settings: Settings,
    *,
    keep_previous: bool = True,
    previous_of: str | None = None,
    profile: Profile | None = None,
    beside: Sequence[Path] = (),
    account: AccountQuotas | None = None,
    progress: Callable[[str], None],
) -> Deployment:
    """Write the BUILD directory of a plan directory, whole or not at all, and return what was written.

    With `keep_previous`, the plan that a deployment of the same name in `out` has becomes the previous one; with
    `previous_of`, that which this stack serves. `profile` says how fast an instance of the GPU pool is, `beside` are
    plan directories of other variants of applications; without an `account`, a new one is assumed.
    """
    options.check()
    plan = load_plan(directory)
    check_artefacts(plan, directory)
    cold = deployed_cold(directory, plan, options)
    if cold:
        check_artefacts(cold, directory / COLD_DIRECTORY)
    check_deployable(plan, options, settings.facts(), cold)
    others = _variants(beside, plan, options, settings)
    check_pool(plan, options, profile)
    require(plan, options, settings.facts(), has_cold=cold is not None)
    place = place_for(out, [directory, *beside], check_build_place)
    if place.is_relative_to(directory.resolve()):
        raise InputError(
            f"{out} lies in the plan directory {directory}, which holds a plan alone; choose another --out"
        )
    with tempfile.TemporaryDirectory(prefix="serfer-") as scratch:
        try:
            if previous_of is not None:
                earlier = _earlier_of(previous_of, place, plan, options, Path(scratch), progress)
            else:
                earlier = _earlier(place, plan, options) if keep_previous else None
        except PlanError as error:
            raise PlanError(
                "the plan before cannot be kept: package with --no-previous, and where it is deployed, replace it "
                f"(serfer deploy apply --replace, docs/how-to/deploy.md) or give another --name: {error}"
            ) from error
        starting = _Source(cold, directory / COLD_DIRECTORY) if cold else None
        current = _Generation(_Source(plan, directory), starting, others)
        with appearing_whole(place, check_build_place) as build:
            account = account or AccountQuotas.new(settings.facts())
            deployment = _Writer(build, options, settings, profile, account, progress).write(current, earlier)
            (build / SAMCONFIG).write_bytes(_settings_of_sam(place, deployment))
    return deployment


def _variants(beside: Sequence[Path], plan: Plan, options: Options, settings: Settings) -> tuple[_Source, ...]:
    """Return the plans of other variants; raises UsageError for what drivers would not use, and as `package` does."""
    if beside and options.applications is None:
        raise UsageError("beside adds variants of applications: name these, --registry URL --app NAME")
    if len(beside) > MOST_BESIDE:
        raise UsageError(f"beside takes at most {MOST_BESIDE} plans, not {len(beside)}")
    found = {digest12(plan): _Source(plan)}
    for directory in beside:
        other = load_plan(directory)
        check_artefacts(other, directory)
        if digest12(other) in found:
            raise UsageError(f"beside={directory}: the plan {digest12(other)} is given twice")
        check_deployable(other, options, settings.facts())
        found[digest12(other)] = _Source(other, directory)
    return tuple(found.values())[1:]


def deployed_cold(directory: Path, plan: Plan, options: Options) -> Plan | None:
    return load_cold_plan(directory, plan) if options.chooses_plans else None


def check_build_place(place: Path) -> None:
    """Refuse what is not a BUILD directory, and one beside which anything else lies: all of it would be deleted."""
    if not place.exists():
        return
    if not place.is_dir():
        raise InputError(f"{place} is not a directory; choose another --out")
    inside = {path.name for path in place.iterdir()}
    if inside and not is_replaceable(place):
        raise InputError(f"{place} exists and was not written by serfer deploy package; choose another --out")
    if foreign := sorted(inside - _OURS):
        raise InputError(
            f"{place} holds {foreign[0]}, which serfer deploy package did not write and would delete: move it, or "
            "choose another --out"
        )


def _earlier(place: Path, plan: Plan, options: Options) -> _Generation | None:
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
    earlier = _packaged(place, deployment, others[0], options)
    for source in earlier.sources:
        digest = digest12(source.plan)
        kept = [f"{GENERATIONS}/{digest}", *(f"{_WEIGHTS}/{piece.name}" for _, piece in _pieces(source.plan))]
        if not all((place / name).is_dir() for name in kept):
            raise InputError(f"{place} has lost its plan {digest}: package with --no-previous, or choose another --out")
    return earlier


def _packaged(place: Path, deployment: Deployment, digest: str, options: Options) -> _Generation:
    plan = load_packaged_plan(place, digest)
    cold = load_packaged_cold(place, deployment, plan) if options.chooses_plans else None
    beside = [load_packaged_plan(place, name) for name in deployment.beside.get(digest, ()) if options.applications]
    starting = _Source(cold, build=place) if cold else None
    return _Generation(_Source(plan, build=place), starting, tuple(_Source(plan, build=place) for plan in beside))


def _earlier_of(
    stack: str, place: Path, plan: Plan, options: Options, scratch: Path, progress: Callable[[str], None]
) -> _Generation | None:
    """Return the generation that a stack serves, or the one before where it serves this plan; None without another."""
    import boto3  # noqa: PLC0415 - only for --previous-of

    session = boto3.session.Session(region_name=options.region)
    try:
        deployed = our_stack(session.client("cloudformation"), stack)
        if deployed.store and deployed.store != options.store:
            raise UsageError(f"--store {options.store}: {stack} has the store {deployed.store}; choose another --name")
        others = [digest for digest in (deployed.serving, *deployed.plans) if digest and digest != digest12(plan)]
        if not others:
            return None
        if (place / GENERATIONS / others[0]).is_dir():
            return _packaged(place, load_deployment(place), others[0], options)
        main = others[0]
        cold = deployed.cold.get(main) if options.chooses_plans else None
        beside = deployed.beside.get(main, ()) if options.applications else ()
        places = {main: scratch, **({cold: scratch / COLD_DIRECTORY} if cold else {})}
        places |= {name: scratch / "beside" / name for name in beside}
        found = {
            name: _Source(fetch_plan(deployed, name, session, where, progress), where) for name, where in places.items()
        }
        return _Generation(found[main], found[cold] if cold else None, tuple(found[name] for name in beside))
    except (BotoCoreError, ClientError) as error:
        raise UnavailableError(f"--previous-of {stack}: {error}") from error


def _different(sources: Iterable[_Source]) -> list[_Source]:
    """Return each plan once, where it was first: the cold plan of one generation may be the plan of another."""
    found: dict[str, _Source] = {}
    for source in sources:
        found.setdefault(digest12(source.plan), source)
    return [*found.values()]


def _pieces(plan: Plan) -> list[tuple[Artefact, Piece]]:
    return [(weights, piece) for weights in fetched([plan]) for piece in pieces(weights)]


def _keep_pool(earlier: _Source, build: Path) -> bool:
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
    kept = read_samconfig(place)
    if kept is not None:
        try:
            before = load_deployment(place)
        except InputError:  # of another version
            return kept
        if kept != samconfig(before.options, images=bool(before.images)):
            return kept
    return samconfig(deployment.options, images=bool(deployment.images))


@dataclass(frozen=True)
class _Writer:
    build: Path
    options: Options
    settings: Settings
    profile: Profile | None
    account: AccountQuotas
    progress: Callable[[str], None]

    def write(self, current: _Generation, earlier: _Generation | None) -> Deployment:
        cache = self.settings.cache_dir
        generations = [current, *([earlier] if earlier else [])]
        sources = _different(source for generation in generations for source in generation.sources)
        plans = [generation.main.plan for generation in generations]
        self.progress("collecting the drivers' dependencies")
        driver = layers.driver_layer(self.build / _LAYERS / "driver", self.options, cache)
        driver_runs = self._driver_runs(generations, driver)
        worker = None
        if any(digest12(source.plan) not in driver_runs for source in sources):
            self.progress("collecting the workers' dependencies")
            worker = layers.worker_layer(self.build / _LAYERS / "worker", self.options, cache)
        if self.options.gpu:
            self.progress("collecting what GPU instances compute with")
            layers.gpu_layer(self.build / _LAYERS / GPU, self.options, cache)
        own = [source.plan for source in current.sources]
        self.progress(f"writing {sum(len(plan.functions) for plan in own)} functions")
        written = {digest12(source.plan): self._source(source, worker, driver_runs) for source in sources}
        pooled = self._drivers(generations)
        every = [source.plan for source in sources]
        for plan in every:
            self._machine(plan)
        by_main = {digest12(generation.main.plan): generation for generation in generations}
        cold = {main: generation.cold.plan for main, generation in by_main.items() if generation.cold}
        spot = {digest for digest in pooled if self._has_spot_price(digest)}
        beside = {main: [source.plan for source in served.beside] for main, served in by_main.items() if served.beside}
        template = make_template(
            self.options,
            plans,
            pooled=pooled,
            cold=cold,
            driver_runs={digest: memory_mb for digest, (memory_mb, _) in driver_runs.items()},
            spot=spot,
            beside=beside,
            concurrency=self.account.concurrency,
        )
        check_template(template, self.settings.facts())
        (self.build / TEMPLATE).write_text(dump(template), encoding="utf-8")
        (self.build / SBOM).write_text(dump_sbom(self.options, every, cache), encoding="utf-8")
        deployment = Deployment(
            serfer=__version__,
            options=self.options,
            plans=tuple(map(digest12, plans)),
            precompiled=driver.compiled_by is not None,
            bytes={
                f"{before}{name}": size
                for before, plan in (("", plans[0]), (COLD_FUNCTIONS, cold.get(digest12(plans[0]))))
                if plan
                for name, size in written[digest12(plan)].items()
            },
            digest=tree_digest(self.build),
            weights={file.sha256: file.bytes for file in fetched(every)},
            images=tuple(image for plan in every for image in images_of(plan)),
            cold={main: digest12(plan) for main, plan in cold.items()},
            driver_runs={digest: memory_mb for digest, (memory_mb, _) in driver_runs.items()},
            beside={main: tuple(map(digest12, others)) for main, others in beside.items()},
        )
        (self.build / RECORD).write_text(dump_deployment(deployment), encoding="utf-8")
        return deployment

    def _source(
        self, source: _Source, worker: Built | None, driver_runs: Mapping[str, tuple[int, int]]
    ) -> dict[str, int]:
        """Write a plan's functions and what they fetch; return the sizes of functions that are made again."""
        sizes, name = {}, digest12(source.plan)
        place, runs = self.build / GENERATIONS / name, driver_runs.get(name)
        if source.directory:
            sizes = self._generation(source.plan, source.directory, None if runs else worker)
        elif source.build:
            link_tree(source.build / GENERATIONS / name, place)
            if not runs and not (place / "functions").exists():  # a driver ran it
                before = plan_directory(source.build, name)
                layers.function_directory(place / "functions" / "0-0", source.plan, before, 0, 0)
        self._weights(source)
        return {"0-0": runs[1]} if runs else sizes

    def _driver_runs(self, generations: list[_Generation], driver: Built) -> dict[str, tuple[int, int]]:
        """Return, by twelve digits, the memory of a driver function that runs a plan, and its bytes unzipped."""
        plans = [generation.main.plan for generation in generations if generation.cold is None]
        facts, place = self.account.within(self.settings.facts()), self.build / _LAYERS / _RUNNER
        if not any(decide(plan, self.options, facts).runs for plan in plans):
            return {}
        self.progress("collecting what a driver computes with")
        runner = layers.runner_layer(place, self.options, self.settings.cache_dir)
        own = sum(len(text.encode()) for plan in plans for text in plan_files(plan).values())
        sizes = {digest12(plan): driver.bytes + runner.bytes + own + plan.function_bytes(0, 0) for plan in plans}
        for plan in plans[: plans[0] is generations[0].main.plan]:  # the one before may be of several functions
            require(plan, self.options, facts, sizes[digest12(plan)])
        decided = {digest12(plan): decide(plan, self.options, facts, sizes[digest12(plan)]) for plan in plans}
        runs = {digest: (decision.memory_mb, sizes[digest]) for digest, decision in decided.items() if decision.runs}
        if not runs:
            shutil.rmtree(place)
            return {}
        layers.health_directory(self.build / _HEALTH)
        return runs

    def _generation(self, plan: Plan, directory: Path, worker: Built | None) -> dict[str, int]:
        """Return the bytes of each function with its layers by "STAGE-PART"; without `worker`, write weights alone."""
        place = self.build / GENERATIONS / digest12(plan)
        facts, sizes = self.settings.facts().functions, {}
        for stage, number in plan.functions:
            name = f"{stage}-{number}"
            if worker is None:
                layers.weights_layer(place / "weights" / name, plan, directory, stage, number)
                continue
            if plan.stages[stage].weights_in == CONTAINER:
                layer, base = self.build / _LAYERS / "worker", self.options.builds_on
                own = [layers.image_directory(place / "images" / name, plan, directory, stage, number, layer, base)]
                sizes[name] = layers.check_size(name, worker, own, facts.image_limit)
                continue
            own = [
                layers.function_directory(place / "functions" / name, plan, directory, stage, number),
                layers.weights_layer(place / "weights" / name, plan, directory, stage, number),
            ]
            sizes[name] = layers.check_size(name, worker, own, facts.package_limit)
        return sizes

    def _weights(self, source: _Source) -> None:
        for weights, piece in _pieces(source.plan):
            place = self.build / _WEIGHTS / piece.name
            if place.exists():  # of another plan
                continue
            if source.directory:
                layers.piece_directory(place, piece, source.directory / weights.path)
            elif source.build:
                link_tree(source.build / _WEIGHTS / piece.name, place)

    def _drivers(self, generations: list[_Generation]) -> set[str]:
        """Write what drivers read of the plans, everything but weights; return which of them have a pool."""
        served = [source.plan for generation in generations for source in (generation.main, *generation.beside)]
        places = {plan_directory(self.build, digest12(plan)): plan for plan in served}
        for main, cold in ((generation.main, generation.cold) for generation in generations):
            if cold:
                places[plan_directory(self.build, digest12(main.plan)) / COLD_DIRECTORY] = cold.plan
        for place, plan in places.items():
            place.mkdir(parents=True)
            write_plan(plan, place)
        pooled = set()
        current, earlier = generations[0].main, generations[1].main if len(generations) > 1 else None
        if self.options.gpu and self.profile and current.directory:
            pooled.add(digest12(current.plan))
            self._pool(current.plan, current.directory)
            if earlier and _keep_pool(earlier, self.build):
                pooled.add(digest12(earlier.plan))
        seal(self.build / _DRIVER, _DRIVER_IDS[self.options.drivers])
        return pooled

    def _pool(self, plan: Plan, directory: Path) -> None:
        assert self.profile is not None  # noqa: S101 - the caller has checked
        place = plan_directory(self.build, digest12(plan))
        scenario = make_scenario(plan, self.options, self.account.within(self.settings.facts()), self.profile)
        (place / SCENARIO).write_text(scenario, encoding="utf-8")
        shutil.copyfile(directory / plan.unsplit.path, place / plan.unsplit.path)

    def _has_spot_price(self, digest: str) -> bool:
        """Return whether a plan's scenario has a spot price for the pool's type: that of an earlier plan may not."""
        scenario = read_scenario(plan_directory(self.build, digest) / SCENARIO)
        kinds = {kind.name for kind in scenario.instances if kind.spot_usd_per_hour > 0}
        return self.options.gpu is not None and self.options.gpu.instance_type in kinds

    def _machine(self, plan: Plan) -> None:
        """Write a plan's state machine, where there is to be one; an earlier one may be of another kind."""
        file = self.build / GENERATIONS / digest12(plan) / MACHINE
        file.unlink(missing_ok=True)
        if self.options.by_state_machine:
            file.write_text(json.dumps(state_machine(plan, self.options), indent=2) + "\n", encoding="utf-8")
