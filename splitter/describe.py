"""Change what a plan says of its images and outputs: nothing of the network is read, split or deployed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serfer.core.errors import InputError, UsageError
from serfer.core.plan import DetectionHead, Plan, Preprocess, check_sound, classes_of, dump_plan, labels_fit
from serfer.core.plan.layout import COLD_DIRECTORY, PLAN_FILE
from serfer.core.plan.pixels import check_numbers
from serfer.files import write_whole
from serfer.images import check_channels
from serfer.plan_directory import load_plan
from serfer.splitter.network.description import Description
from serfer.splitter.network.detection_heads import with_classes
from serfer.splitter.plan_dir.output_directory import alone_in


def describe(
    directory: Path | str,
    *,
    preprocess: Preprocess | Path | str | None = None,
    labels: Sequence[str] | Path | str | None = None,
    activation: str | None = None,
) -> Plan:
    """Change the description of a plan directory, and of its cold plan, and return the plan.

    What is not given stays as it is; `labels` of () are none. Graphs, weights and the digest stay, and so do deployed
    functions of stages. What serves the plan answers by the new description once it is started again.

    Args:
        directory: The plan directory.
        preprocess: How an image becomes the input: a `serfer.Preprocess`, or the path of a TOML file
            (docs/how-to/preprocess.md).
        labels: The names of the outputs, or the path of a file with one a line.
        activation: What turns the outputs into scores: "softmax", "sigmoid" or "none"; or "boxes", as `split` has it.

    Raises:
        PlanError: the directory has no plan, or the network takes images of other channels or numbers.
        ModelError: the outputs are not those of a detector, or it has fewer classes than there are labels.
        InputError: a file that was given cannot be used, there are not as many labels as outputs, or the plan cannot
            be written.
        UsageError: another value.
    """
    place = Path(directory)
    given = Description.of(preprocess, labels or (), activation, resized=load_plan(place).windows is None)
    try:
        with alone_in(place.absolute().parent):
            places = [path for path in (place / COLD_DIRECTORY, place) if path.exists()]
            plans = [_changed(load_plan(path), given, keep_labels=labels is None) for path in places]
            for path, plan in zip(places, plans, strict=True):
                write_whole(path / PLAN_FILE, dump_plan(plan).encode())
    except OSError as error:
        raise InputError(f"{directory} cannot be changed: {error.strerror}") from error
    return plans[-1]


def _detection(plan: Plan, given: Description, labels: int) -> DetectionHead | None:
    if given.boxes and plan.windows:
        raise UsageError(
            "thresholds of a map's boxes are options of serfer map, min_score and max_iou; another family, or "
            "boxes of a plan that has none, need serfer map-plan --output boxes"
        )
    if given.boxes:
        return given.boxes.head(plan.output_tensors, plan.input, labels)
    if plan.detection is None or given.activation:
        return None
    return with_classes(plan.detection, plan.output_tensors, plan.input, labels)


def _changed(plan: Plan, given: Description, *, keep_labels: bool) -> Plan:
    before = plan.description
    after = replace(
        before,
        preprocess=given.preprocess or before.preprocess,
        labels=before.labels if keep_labels else given.labels,
        activation=given.activation or before.activation,
    )
    after = replace(after, detection=_detection(plan, given, len(after.labels)))
    changed = plan.redescribed(after)
    if given.preprocess:
        check_channels(given.preprocess, plan.input)
        if plan.file:
            check_numbers(given.preprocess, plan.file.input, plan.file.dtype)
    if after.detection is None and not labels_fit(changed):
        classes = classes_of(plan.output, plan.output_tensors[0])
        raise InputError(f"there are {len(after.labels)} labels for a network with {classes} outputs")
    check_sound(changed)
    return changed
