"""A network's profile for a cluster's scenario from our operator profiles: the CPU side of f(b, c, g) (INFless, 3.3).

What an operator takes here is affine in the batch, and a share of it divides by cores, as in `Times`: nothing is lost
but digits. ONNX Runtime runs operators one after another, branches too: a chain. Operators of a kind are added up.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from serfer.core.costs.operator_costs import Kind, Profiles, Work
from serfer.core.dataclass_codec import unstructure
from serfer.core.units import MS_PER_S
from serfer_bench.study.policies.infless.profiles import Operator, Times
from serfer_bench.study.policies.infless.scenario import MAX_NAME, Profile

RUN: Final = "run"
"""The operator that stands for what running a session costs besides its operators."""


def measured_profile(name: str, works: Iterable[Work], profiles: Profiles) -> Profile:
    """Return the profile of a network of these operators: one for each of their kinds, without GPU figures.

    Converting an operator's result for its readers counts as the operator's own.
    """
    parts = defaultdict[Kind, list[tuple[float, float, float, float]]](list)
    for work in works:
        batch, first = profiles.parts(work, 0), profiles.parts(work, 1)
        parts[work.kind].append((*batch, first[0] - batch[0], first[1] - batch[1]))
    operators = [Operator(RUN, Times(_ms(profiles.run_s)))]
    for kind, each in sorted(parts.items()):
        batch_ms, batch_core_ms, image_ms, core_ms = (_ms(sum(one)) for one in zip(*each, strict=True))
        operators.append(Operator(kind.value, Times(batch_ms, image_ms, core_ms, batch_core_ms=batch_core_ms)))
    return Profile(_printable(name)[:MAX_NAME] or "network", tuple(operators))


def dump_profile(profile: Profile, source: Profiles) -> str:
    origin = _printable(f"{source.machine}; {source.runtime}; {source.date}")
    lines = [
        f"# {profile.name}, unsplit, by kinds of operators: add it to a scenario of serfer study simulate",
        "# (docs/explanation/infless.md). No GPU figures: a share of a GPU makes it no faster.",
        f"# Predicted from operator profiles of {origin}",
        "[[profiles]]",
        f"name = {_text(profile.name)}",
    ]
    for operator in profile.operators:
        times = unstructure(operator.cpu)
        values = ", ".join(f"{key} = {ms!r}" for key, ms in times.items() if ms or key == "batch_ms")
        lines += ["[[profiles.operators]]", f"name = {_text(operator.name)}", f"cpu = {{ {values} }}"]
    return "\n".join(lines) + "\n"


def _ms(seconds: float) -> float:
    return float(f"{max(0.0, seconds) * MS_PER_S:.6g}")


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
