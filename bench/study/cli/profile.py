"""`serfer study profile` and `cluster-profile`: what operators take here, and batches of a network by that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.display import plain, print_table
from serfer.cli.shared.options import JsonOption, print_json, status_line
from serfer.cli.shared.terminal import err, out
from serfer.core.costs.operator_costs import Profiles, dump_profiles
from serfer.core.plan.window_plan import check_whole_images
from serfer.files import check_place, write_whole
from serfer.plan_directory import check_artefacts, load_plan
from serfer.settings import load_settings
from serfer_bench.study.policies.infless.measured import dump_profile, measured_profile

_QUICK_NETWORKS, _QUICK_ROUNDS = (("squeezenet", 224), ("mobilenet-v2", 224)), 2


def profile(
    file: Annotated[Path, typer.Option("--out", help="The JSON file to write.")] = Path("profiles.json"),
    quick: Annotated[bool, typer.Option("--quick", help="Measure less: one to three minutes, less exact.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure on this machine what operators cost, for split --profiles: three to five minutes on a quiet machine."""
    check_place(file)
    from serfer_bench.study.profiling.profile import measure  # noqa: PLC0415 - imports onnx

    with status_line() as progress:
        profiles = measure(progress, _QUICK_NETWORKS, _QUICK_ROUNDS) if quick else measure(progress)
    write_whole(file, dump_profiles(profiles).encode())
    if as_json:
        print_json(json.loads(dump_profiles(profiles)))
    else:
        _print_profiles(profiles)
    err.print(
        f"wrote {plain(str(file))}: give it to split --profiles, or set SERFER_PROFILES_FILE to it",
        soft_wrap=True,
    )


def cluster_profile(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A plan directory.")],
    file: Annotated[Path, typer.Option("--out", help="The TOML file to write.")],
    profiles: Annotated[
        Path | None, typer.Option(help="Operator profiles to predict by, from serfer study profile.")
    ] = None,
) -> None:
    """Predict what batches of a plan's network take on cores: [[profiles]] of a cluster's scenario of simulate."""
    plan = load_plan(directory)
    check_whole_images(plan)
    check_place(file)
    measured = load_settings().profiles(profiles)
    check_artefacts(plan, directory)
    with status_line() as progress:
        progress(f"reading {plan.unsplit.path}")
        from serfer_bench.study.profiling.whole_network import read_whole_works  # noqa: PLC0415 - imports onnx

        works = read_whole_works(directory / plan.unsplit.path, plan.input.height, plan.input.width)
    write_whole(file, dump_profile(measured_profile(plan.model, works, measured), measured).encode())
    err.print(f"wrote {plain(str(file))}: add it to a cluster's scenario of serfer study simulate", soft_wrap=True)


def _print_profiles(profiles: Profiles) -> None:
    rows = (
        (str(kind), f"{profile.samples:,}", f"{profile.error:.1%}", f"{profile.parallel:.0%}")
        for kind, profile in profiles.kinds.items()
    )
    print_table(["operators", "measured", "mean error of the fit", "divided among threads"], rows)
    out.print(plain(f"{profiles.machine}; {profiles.runtime}; {profiles.date}"))
