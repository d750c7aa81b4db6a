"""Plans that take images of many sizes: at each what ONNX Runtime gives, and bounded before anything runs."""

import io
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from PIL import Image
from typer.testing import CliRunner

import serfer
from serfer.cli.main import app
from serfer.core.errors import ImageError, InputError, ModelError, PlanError, PlanWarning, TaskFailedError, UsageError
from serfer.core.exactness import relative_error
from serfer.core.plan import AxisForm, InputSizes, PlanSizes, SideSizes, check_sound, dump_plan, parse_plan
from serfer.core.plan.sized_plan import sized_plan
from serfer.core.plan.sizes import Steps
from serfer.drivers.stepfunctions.asl import compile_plan
from serfer.instance.network import load_whole
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.splitter.describe import describe
from serfer.splitter.network import open_sizes
from serfer.splitter.network.description import read_preprocess
from serfer.splitter.profiling import part_costs
from serfer.splitter.whole import whole_plan
from tests.splitter.models import Net, opened, saved

SIZES = "8..40x8..64,multiple=8,pixels=1024"


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Leave out the process that measures a part."""
    monkeypatch.setattr(part_costs, "measured", lambda *_: (0.001, 1 << 20))


def backbone(net):
    x = net.op("Relu", net.conv("x", 3, 4, 3))
    return net.conv(x, 4, 5, [8, 8], strides=[8, 8])


def everything():
    """Maps at full and at an eighth of the size, a sequence along the columns, cells by area, and classes."""
    net = Net(3, "H", "W")
    small = backbone(net)
    net.op("Identity", small, output="small")
    net.op("Resize", small, "", [1.0, 1.0, 8.0, 8.0], mode="nearest", output="map")
    net.op("Transpose", net.op("ReduceMean", small, [2], keepdims=0), perm=[0, 2, 1], output="sequence")
    net.op("Reshape", small, [0, 5, -1], output="cells")
    net.linear(net.flat(net.op("GlobalAveragePool", small)), 5, 7)
    net.nodes[-1].output[:] = ["classes"]
    ranks = {"small": 4, "map": 4, "sequence": 3, "cells": 3, "classes": 2}
    return net.model(*((name, TensorProto.FLOAT, rank) for name, rank in ranks.items()))


def classifier():
    net = Net(3, "H", "W")
    return net.model(net.linear(net.flat(net.op("GlobalAveragePool", backbone(net))), 5, 7))


def made(tmp_path, model, sizes=SIZES):
    return whole_plan(saved(tmp_path, model), out=tmp_path / "plan", sizes=sizes)


def png(width, height):
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def noise(count, rows, columns):
    return np.random.default_rng(rows * columns).random((count, 3, rows, columns), dtype=np.float32)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The directory of a plan with all kinds of outputs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_costs, "measured", lambda *_: (0.001, 1 << 20))
        place = tmp_path_factory.mktemp("many")
        made(place, everything())
    return place / "plan"


def test_each_size_is_answered_as_onnx_runtime_does(many):
    session = ort.InferenceSession(many.parent / "net.onnx")
    whole = unsplit(load_plan(many), many)
    with opened(many) as pipeline:
        for size in [(8, 8), (40, 24), (8, 64), (32, 32), (16, 40)]:
            batch = noise(2, *size)
            answer = pipeline.run(batch)
            assert answer["map"].shape == (2, 5, *size)
            assert answer["sequence"].shape == (2, size[1] // 8, 5)
            for name, value in zip(answer, session.run(None, {"x": batch}), strict=True):
                np.testing.assert_allclose(answer[name], value, rtol=1e-5, atol=1e-6)
                np.testing.assert_array_equal(answer[name], whole(batch)[name])
        assert pipeline.plan.input.elements == 3 * 32 * 32
        assert pipeline.last_report.as_dict()


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(1, 3, *size) for size in ((8, 12), (48, 8), (40, 32), (0, 8), (8, 72))], r"8 to 40 \(multiples of 8\)"),
        ([(3, 8, 8), (1, 4, 8, 8), ()], r"takes \(N, 3, H, W\) float32"),
    ],
)
def test_other_sizes_and_shapes_are_refused_before_anything_runs(many, shapes, words):
    with opened(many) as pipeline:
        for shape in shapes:
            with pytest.raises(InputError, match=words):
                pipeline.submit(np.zeros(shape, np.float32))


def test_queries_of_several_sizes_are_in_flight_at_once(many):
    sizes = [(8 * rows, 8 * columns) for rows in (1, 2, 3, 4) for columns in (1, 2, 3)]
    with opened(many) as pipeline:
        futures = [pipeline.submit(noise(1, *size)) for size in sizes]
        for size, future in zip(sizes, futures, strict=True):
            np.testing.assert_array_equal(future.result().outputs["small"], pipeline.run(noise(1, *size))["small"])


def test_a_network_of_any_size_classifies_and_no_instance_takes_it(tmp_path):
    plan = made(tmp_path, classifier())
    assert plan.classifies
    with opened(tmp_path / "plan") as pipeline:
        assert pipeline.run(noise(3, 24, 16)).shape == (3, 7)
    with pytest.raises(PlanError, match=r"many sizes.*instances take one"):
        load_whole(tmp_path / "plan")
    with pytest.raises(PlanError, match=r"many sizes.*state machines take one"):
        compile_plan(plan, [["function"]], express=False)
    with pytest.raises(UsageError, match="the largest of these sizes, 32 x 32"):
        whole_plan(tmp_path / "net.onnx", noise(1, 8, 8), tmp_path / "plan", sizes=SIZES)


def test_a_side_that_is_fixed_has_one_size(tmp_path):
    net = Net(3, 16, "W")
    model = net.model(backbone(net), dims=[None] * 4)
    plan = made(tmp_path, model, "16x16..64,multiple=8")
    assert (plan.input.height, plan.input.width) == (16, 64)
    with opened(tmp_path / "plan") as pipeline:
        assert pipeline.run(noise(1, 16, 24)).shape == (1, 5, 2, 3)


def sized_by_data():
    net = Net(3, "H", "W")
    found = net.op("NonZero", net.op("Relu", backbone(net)))
    return net.model(net.op("Cast", found, to=TensorProto.FLOAT), dims=[None, None])


def enlarged():
    """A map of one and a half times the size, which is rounded otherwise than by strides."""
    net = Net(3, "H", "W")
    return net.model(net.op("Resize", "x", "", [1, 1, 1.5, 1.5], mode="nearest"), dims=[None] * 4)


@pytest.mark.parametrize(
    ("model", "sizes", "why"),
    [
        (enlarged, "8..41x8..64,multiple=1", "is 3 x .* for images of .*, not 3 x .*; often a larger multiple"),
        (classifier, "4..64x4..64,multiple=4", "does not take images of 4 x 4"),
        (lambda: Net(3, 16, 16).model("x", dims=[None] * 4), SIZES, "16"),
        (sized_by_data, SIZES, "depends on what is in the image"),
    ],
)
def test_sizes_that_a_network_does_not_take_are_refused(tmp_path, model, sizes, why):
    with pytest.raises(ModelError, match=why):
        made(tmp_path, model(), sizes)
    assert not (tmp_path / "plan").exists()


def test_outputs_whose_sizes_are_rounded_by_strides_have_them(tmp_path):
    """Strides of 2 and 8 and a window of 3, on sides of any number: maps, and cells by area."""
    net = Net(3, "H", "W")
    x = net.conv("x", 3, 4, 3, strides=[2, 2])
    small = net.conv(x, 4, 5, [4, 4], strides=[4, 4])
    net.op("Reshape", small, [0, 5, -1], output="cells")
    net.op("Identity", x, output="half")
    path = net.save(tmp_path, ("cells", TensorProto.FLOAT, 3), ("half", TensorProto.FLOAT, 4))
    plan = whole_plan(path, out=tmp_path / "plan", sizes="8..67x16..70")
    assert parse_plan(dump_plan(plan)).sizes == plan.sizes
    session = ort.InferenceSession(path)
    with opened(tmp_path / "plan") as pipeline:
        for size in [(8, 16), (9, 23), (41, 17), (33, 70), (67, 64)]:
            cells, half = session.run(None, {"x": noise(1, *size)})
            answer = pipeline.run(noise(1, *size))
            assert (answer["cells"].shape, answer["half"].shape) == (cells.shape, half.shape)
            np.testing.assert_allclose(answer["half"], half, rtol=1e-5, atol=1e-6)


def test_a_worker_says_where_the_network_gives_another_size(tmp_path, monkeypatch):
    """A form that was wrong between the sizes that are tried, as of a network that rounds there alone."""
    monkeypatch.setattr("serfer.splitter.build.compared_sizes", lambda sizes: [sizes.largest])
    true = open_sizes.plan_sizes

    def wrong(run, image, sizes, results):
        forms = true(run, image, sizes, results)
        return replace(forms, outputs=((forms.outputs[0][0], AxisForm(8, by_rows=-1), forms.outputs[0][2]),))

    monkeypatch.setattr("serfer.splitter.tiling.from_onnx.plan_sizes", wrong)
    net = Net(3, "H", "W")
    made(tmp_path, net.model(backbone(net), dims=[None] * 4))
    with (
        opened(tmp_path / "plan") as pipeline,
        pytest.raises(TaskFailedError, match=r"\(1, 5, 2, 2\), the plan says \(1, 5, 6, 2\)"),
    ):
        pipeline.run(noise(1, 16, 16))


class TestImages:
    """Images, whose input's size follows from their own."""

    @pytest.fixture
    def images(self):
        return [png(24, 16), png(40, 9), png(23, 17)]  # 16 x 24, 8 x 40, 16 x 24

    @pytest.fixture
    def directory(self, tmp_path):
        (tmp_path / "images.toml").write_text("shorter_side = 8\n")
        path = saved(tmp_path, everything())
        whole_plan(path, out=tmp_path / "plan", sizes=SIZES, preprocess=tmp_path / "images.toml")
        return tmp_path / "plan"

    def test_images_of_several_sizes_are_answered_in_their_order(self, directory, images):
        with opened(directory) as pipeline:
            found = pipeline.predict(images)
            assert [(image.height, image.width) for image in found] == [(16, 24), (9, 40), (17, 23)]
            assert [output.shape for image in found for output in image.outputs if output.name == "small"] == [
                *((5, 2, 3), (5, 1, 5), (5, 2, 3))
            ]
            alone = [pipeline.predict([image])[0].outputs for image in images]
            assert [image.outputs for image in found] == alone
            assert pipeline.run(pipeline.pixels(images[:1]))["map"].shape == (1, 5, 16, 24)
            with pytest.raises(
                ImageError, match="image 1 is an input of 8 x 40 pixels, the first image one of 16 x 24"
            ):
                pipeline.pixels(images)

    def test_images_are_classified_and_answers_of_arrays_are_kept(self, tmp_path, images):
        path = saved(tmp_path, classifier())
        settings = Settings(cache_dir=tmp_path / "cache")
        with pytest.warns(PlanWarning, match=r"stretched to the nearest of 8 to 40 \(multiples of 8\) rows"):
            opened_file = serfer.open(path, store="memory://", sizes=SIZES, settings=settings, cache_s=60)
        with opened_file as pipeline:
            [first] = pipeline.classify(images[:1])
            assert pipeline.classify(images[:1]) == [first]
            assert len(pipeline.classify([images[0], images[2]])) == 2
            session = ort.InferenceSession(path)
            for size in ((8, 8), (8, 16), (8, 8)):
                [expected] = session.run(None, {"x": noise(1, *size)})
                assert relative_error(pipeline.run(noise(1, *size)), expected) < 1e-6
            assert pipeline.last_report.target == "cache"

    def test_a_description_for_another_kind_of_plan_is_refused(self, directory, tmp_path):
        (tmp_path / "crop.toml").write_text("resize = 16\n")
        with pytest.raises(PlanError, match="by the crop of the preprocessing an image of any size"):
            describe(directory, preprocess=tmp_path / "crop.toml")
        assert describe(directory, preprocess=replace(load_plan(directory).preprocess, limit=None)).sizes
        with pytest.raises(PlanError, match="for a plan that takes images of many sizes"):
            whole_plan(tmp_path / "net.onnx", noise(1, 8, 8), tmp_path / "one", preprocess=tmp_path / "images.toml")

        for text in ("shorter_side = 8\nlonger_side = 9", "shorter_side = 8\nresize = 9", "longer_side = 0"):
            (tmp_path / "images.toml").write_text(text)
            with pytest.raises(InputError, match="side"):
                read_preprocess(tmp_path / "images.toml")


def test_a_range_goes_with_a_whole_network_alone(tmp_path):
    path = saved(tmp_path, classifier())
    for options, error in ((["--size", SIZES], UsageError), (["--whole", "--size", "8..x8"], InputError)):
        done = CliRunner().invoke(app, ["split", str(path), "--out", str(tmp_path / "plan"), *options])
        assert type(done.exception) is error


def test_an_altered_plan_is_refused(many):
    plan = load_plan(many)
    assert plan.sizes is not None
    other = replace(plan.sizes, input=replace(plan.sizes.input, most_pixels=40 * 64))
    negative = replace(plan.sizes, outputs=((AxisForm(-1), *plan.sizes.outputs[0][1:]), *plan.sizes.outputs[1:]))
    for sizes in (other, negative, replace(plan.sizes, outputs=())):
        with pytest.raises(PlanError, match="sizes"):
            check_sound(replace(plan, sizes=sizes))
    with pytest.raises(InputError, match="one input size"):
        sized_plan(replace(plan, sizes=None), (8, 8))


class TestInputSizes:
    @staticmethod
    def sides(more):
        def of(multiple, least, more):
            return SideSizes(multiple * least, multiple * (least + more), multiple)

        return st.builds(of, st.integers(1, 64), st.integers(1, 20), more)

    @staticmethod
    def sizes_of(rows, columns, share=1):
        least, most = rows.least * columns.least, rows.most * columns.most
        return InputSizes(rows, columns, least + int(share * (most - least)))

    few = sides(st.integers(0, 20))
    sizes = st.builds(sizes_of, few, few, st.floats(0, 1))

    @given(sizes)
    def test_the_largest_is_one_of_them_and_so_is_what_is_checked(self, sizes):
        assert sizes.largest in sizes
        assert all(size in sizes for size in open_sizes.compared_sizes(sizes))

    steps = st.integers(1, 8).flatmap(lambda size: st.builds(Steps, st.just(size), st.integers(0, size - 1)))

    roomy = sides(st.just(0) | st.integers(20, 60))
    many = st.builds(sizes_of, roomy, roomy)

    @given(many, st.tuples(*[st.integers(0, 9)] * 4), steps, steps, st.floats(0, 1), st.floats(0, 1))
    def test_forms_are_found_from_few_sizes(self, sizes, numbers, row_steps, column_steps, down, across):
        form = AxisForm(1 + numbers[0], *numbers[1:], row_steps, column_steps)

        def run(image):
            return np.zeros((1, form.at(sizes.units(image.shape[:2]))), np.bool_)

        [[found]] = open_sizes.plan_sizes(run, lambda size: np.broadcast_to(0, size), sizes, [_Result()]).outputs
        size = tuple(
            side.floor(side.least + share * (side.most - side.least))
            for side, share in ((sizes.rows, down), (sizes.columns, across))
        )
        assert PlanSizes(sizes, ((found,),)).dims(0, size) == (form.at(sizes.units(size)),)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("32..64x48", "32 to 64 rows and 48 columns"),
            ("48x320..2400,multiple=8", "48 rows and 320 to 2400 (multiples of 8) columns"),
            (SIZES, "8 to 40 (multiples of 8) rows and 8 to 64 (multiples of 8) columns, 1,024 pixels at most"),
        ],
    )
    def test_text_is_read(self, text, said):
        assert str(InputSizes.of(text)) == said

    @pytest.mark.parametrize(
        "text",
        [
            *("", "32", "32x", "64..32x32", "32..64x32..64,multiple=7", "32..64x32..64,pixels=9", "0x32"),
            *("32..64x32..64,step=2", "32..64x32..64,multiple=8,multiple=8", "9" * 300, "32..99999x32"),
        ],
    )
    def test_other_text_is_refused(self, text):
        with pytest.raises(InputError, match=r"32\.\.2016|pixels"):
            InputSizes.of(text)


class _Result:
    """A result of a part, as far as its axes go."""

    name, leading, varying = "y", True, None
