"""What Gillis's and MPHB's programs answered on 2026-11-28 (`recorded_plans.json`): results, not code of theirs.

Gillis's at commit 2244da4, MPHB's at 37fed57, both with the coefficients of AWS Lambda and their own limits of memory,
1,400 and 2,048 MB; networks as in networks.py. `serfer study planner peers --checkout DIR --keep FILE` writes such a
file again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError
from serfer.files import write_whole
from serfer_bench.study.planner.peers.programs import TheirPlan
from serfer_bench.study.planner.peers.questions import Question

_FILE: Final = "recorded_plans.json"


@dataclass(frozen=True)
class Answer:
    """A program's plan for a network; None where its policy found none."""

    program: str
    network: str
    question: Question
    plan: TheirPlan | None


@dataclass(frozen=True)
class _Recorded:
    answers: tuple[Answer, ...]


def recorded() -> tuple[Answer, ...]:
    text = files("serfer_bench.study.planner.peers").joinpath(_FILE).read_text(encoding="utf-8")
    return structure(_Recorded, json.loads(text), _FILE, error=InputError).answers


def keep(answers: Iterable[Answer], path: Path) -> None:
    lines = ",\n".join(json.dumps(unstructure(answer)) for answer in answers)
    write_whole(path, f'{{"answers": [\n{lines}\n]}}\n'.encode())
