"""Where the parts do not equal the model, the error names the cause."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from serfer.core.errors import ModelError
from serfer.splitter.network.source import load
from serfer.splitter.plan_dir.check import check_exact
from tests.splitter.models import split_two_stages

BATCH = np.random.default_rng(4).standard_normal((2, 3, 8, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    home = tmp_path_factory.mktemp("net")
    plan, directory = split_two_stages(home)
    return plan, directory, load(home / "net.onnx", BATCH)[0]


def complaint(plan, directory, source, rounding=0.0):
    with pytest.raises(ModelError) as caught:
        check_exact(plan, directory, source, BATCH, rounding)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("exported", "words"), [(True, "as exported to ONNX"), (False, "as read from the ONNX file")])
@pytest.mark.parametrize("rounding", [0.0, 1e-2])
def test_only_modules_exported_by_split_are_reported_as_exported(parts, exported, words, rounding):
    plan, directory, source = parts
    other = replace(source, run=lambda batch: source.run(batch * 2), exported=exported)
    message = complaint(plan, directory, other, rounding)
    assert words in message
    assert exported == ("export" in message)


def test_a_model_that_mixes_images_or_takes_one_is_told_from_a_misread_one(parts):
    plan, directory, source = parts

    def run(batch):
        if len(batch) > 1:
            raise ValueError("one image, please\nat most")
        return source.run(batch)

    mixing = replace(source, run=lambda batch: source.run(batch + 0 * batch) + 3 * (len(batch) - 1))
    assert "mixes the images of a batch or depends on their number" in complaint(plan, directory, mixing)
    text = complaint(plan, directory, replace(source, run=run))
    assert "does not run on a batch of 2 images: ValueError: one image" in text


def test_a_part_that_cannot_run_is_not_attributed_to_the_batch_size(parts, tmp_path):
    plan, directory, source = parts
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / plan.stages[0].tiles[0].graph).write_bytes(b"\x08\x0a")
    message = complaint(plan, tmp_path, source)
    assert "a part of the split network does not run in ONNX Runtime" in message
    assert "images" not in message
