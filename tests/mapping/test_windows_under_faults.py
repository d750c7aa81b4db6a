"""Windows where something is wrong: what a worker cannot read, full disks, other jobs, hostile JSON, odd sizes."""

import json
import os
import re
import resource
import shutil
import signal
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property, partial
from itertools import product
from multiprocessing import Pipe, get_context
from pathlib import Path
from types import SimpleNamespace

import boto3
import numpy as np
import pytest
import rasterio
import zarr

import serfer
from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import SerferError
from serfer.mapping.opened import open_plan
from serfer.raster import objects
from serfer_bench.core.s3_server import S3Server
from tests.mapping.plans import close_opened, network, read
from tests.mapping.test_statistics import gated
from tests.raster.files import UTM, WHERE, pixels, write
from tests.splitter.models import saved
from tests.splitter.windows.random_maps import draw

ROOT = Path(__file__).parents[2]
SIZE = 70, 101
FEW, WEEKLY, FIXED_SEED = (5, 6), range(150), 34
"""Of the fixed seed: two outputs, and classes."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A plan that nobody changes, and what it makes of the image."""
    folder = tmp_path_factory.mktemp("made")
    serfer.map_plan(gated(folder / "gated.onnx")[1], [SIZE], folder / "plan", window=32, kept_maps="never")
    image = write(folder / "image.tif", pixels(*SIZE))
    serfer.map(image, folder / "plan", folder / "out.tif", workers="inprocess")
    return SimpleNamespace(plan=folder / "plan", expected=read(folder / "out.tif"))


@pytest.fixture
def place(made, tmp_path):
    """An image and a plan of the test's own."""
    yield SimpleNamespace(
        image=write(tmp_path / "image.tif", pixels(*SIZE)), plan=shutil.copytree(made.plan, tmp_path / "plan")
    )
    close_opened()


def as_nobody(act):
    """Do something without the rights of root, where we are root."""
    if not (root := os.geteuid() == 0):
        return act()
    os.seteuid(65534)
    try:
        return act()
    finally:
        os.seteuid(0 if root else os.geteuid())


class Child:
    """A forked process that does something, and may write files of so many bytes; more is an error, or its death."""

    def __init__(self, act, *given, limit=resource.RLIM_INFINITY, dies=False):
        self._ends, begun = Pipe(duplex=False)

        def run():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL if dies else signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                act(*given)
            except Exception as error:  # noqa: BLE001 - the parent looks at it
                begun.send(error)

        self._process = get_context("fork").Process(target=run)
        self._process.start()
        begun.close()

    def ended(self):
        """Return the error, None for none, and the exit code."""
        self._process.join(60)
        try:
            return self._ends.recv(), self._process.exitcode
        except EOFError:
            return None, self._process.exitcode


def refused(act, *words):
    with pytest.raises(SerferError) as caught:
        act()
    said = str(caught.value)
    del caught  # whose frames have plans that are open, and themselves
    assert "\n" not in said
    assert len(said) < 600
    assert [word for word in words if word not in said] == [], said


def altered(path):
    """Change a byte of a file, and nothing that `ls` shows."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 255
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def folder_in_place_of(path):
    path.unlink()
    path.mkdir()


def without_permission(path):
    path.chmod(0)


IMAGES = {
    "absent": Path.unlink,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "altered": altered,
    "folder": folder_in_place_of,
    "no permission": without_permission,
}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("change", IMAGES)
def test_image_that_a_worker_cannot_read_is_refused_by_name(place, change, opened):
    window = serfer.windows(place.image, place.plan).passes[0][0]
    close_opened()
    window.run() if opened else open_plan(window.spec.plan, window.spec.digest)
    IMAGES[change](place.image)
    refused(partial(as_nobody, window.run) if change == "no permission" else window.run, "image.tif")


def test_image_that_is_cut_is_refused_where_its_pixels_are_read(place):
    os.truncate(place.image, place.image.stat().st_size // 2)
    windows = serfer.windows(place.image, place.plan).passes[0]
    refused(lambda: [window.run() for window in windows], "image.tif", "is the file whole?")


def edited(change):
    def edit(plan):
        value = json.loads((plan / "plan.json").read_text())
        (plan / "plan.json").write_text(json.dumps(value | change))

    return edit


PLANS = {
    "absent": (shutil.rmtree, "it does not exist"),
    "without its file": (lambda plan: (plan / "plan.json").unlink(), "it has no plan.json"),
    "cut": (lambda plan: os.truncate(plan / "plan.json", 100), "is not JSON"),
    "of a later version": (edited({"format": 999}), "has format 999, this version reads"),
    "edited": (edited({"model": "another"}), "was edited"),
    "with another graph": (lambda plan: altered(next(plan.rglob("stage-0/*.onnx"))), "was altered"),
    "without a graph": (lambda plan: next(plan.rglob("stage-0/*.onnx")).unlink(), "is missing"),
}


@pytest.mark.parametrize("change", PLANS)
def test_plan_that_a_worker_does_not_reach_or_that_changed_is_refused_by_name(place, change):
    window = serfer.windows(place.image, place.plan).passes[0][0]
    close_opened()
    act, words = PLANS[change]
    act(place.plan)
    refused(window.run, str(place.plan), words)


BIG = 10**400
ANY = ("", [], {}, 1.5, True, "0", float("nan"), float("inf"), -1, 1 << 63, BIG, [[[]]])
DEEP = "[" * 900 + "]" * 900
OPTIONS = (
    "", "x", "[1]", "null", '"x"', '{"bands": 7}', '{"bands": [[[]]]}', '{"bands": ["1"]}', '{"bands": [1e400]}',
    '{"more": 1}', '{"no_data": {}}', '{"full_scale": NaN}', DEEP, f'{{"dtype": {DEEP}}}', "[" * 10**5, "1" * 5000,
)  # fmt: skip
FIELDS = [*product(("number", "in_pass", "kind", "macs", "read_bytes"), [None], ANY)]
HOSTILE = [
    *((name, part, value) for name, part, value in FIELDS),
    *product(("reads", "writes", "spec"), [None], (None, *ANY[1:-1])),
    *product(["spec"], ("version", "plan", "digest", "image", "identity"), (None, 7, [], "a\nb", "\0", "x" * 5000)),
    *product(["spec"], ["size"], ([1], [1, 2, 3], [-1, 1], [1, "1"], [1, BIG], "11", None)),
    *product(["spec"], ["options"], (None, 7, *OPTIONS)),
    *product(["spec"], ["normalisation"], ({}, [], {"offset": [BIG], "span": [], "pixels": 1})),
    *product(["reads"], ["rows"], ({"start": -5, "stop": 3}, {"start": 0, "stop": BIG}, {"start": 0}, [0, 1])),
    *((name, None, 1) for name in ("more", "x" * 10**5, "a\nb", "__class__")),
]  # fmt: skip


@pytest.mark.hostile
def test_hostile_json_is_refused_in_one_line_before_anything_is_opened(place, monkeypatch):
    good = unstructure(serfer.windows(place.image, place.plan)[0])
    assert serfer.MapWindow.from_json(json.dumps(good)).number == 0
    monkeypatch.delattr("serfer.mapping.windows.open_plan")
    monkeypatch.delattr("serfer.mapping.windows.open_image")
    for name, part, value in HOSTILE:
        inner = value if part is None else good[name] | {part: value}
        if (name, part, value) in (("in_pass", None, None), ("writes", None, [])):
            continue
        refused(partial(serfer.MapWindow.from_json, json.dumps(good | {name: inner})))
    for text in ("", "[" * 10**5, '{"spec":' * 900 + "1" + "}" * 900, "1" * (2 << 20), b"\xff", None, 7):
        refused(lambda text=text: serfer.MapWindow.from_json(text))


@pytest.mark.hostile
@pytest.mark.parametrize("change", [{"identity": ""}, {"identity": "0" * 64}, {"digest": ""}, {"size": (SIZE[0], 7)}])
def test_window_without_what_tells_image_and_plan_from_others_is_refused(place, change):
    text = serfer.windows(place.image, place.plan).passes[0][0].to_json()
    value = json.loads(text)
    window = serfer.MapWindow.from_json(json.dumps(value | {"spec": value["spec"] | change}))
    refused(window.run, str(place.image.parent))


@pytest.mark.parametrize(
    "size", [None, 5, (1,), (1, 2, 3), "", (0, 5), (-1, 5), (1.5, 2), ("a", 1), (1, BIG), b"xy", {}]
)
def test_what_is_no_image_is_refused(made, size):
    refused(lambda: serfer.windows(size, made.plan))


@pytest.mark.parametrize(
    "options", [{"bands": 7}, {"bands": ["a"]}, {"bands": (1.5,)}, {"no_data": BIG}, {"full_scale": BIG}, {"more": 1}]
)
def test_options_that_no_window_has_are_refused(made, options):
    refused(lambda: serfer.windows(SIZE, made.plan, **options))


@pytest.mark.parametrize("plan", [5, b"x", [1], "a\0b", "http://a/b"])
def test_what_is_no_plan_is_refused(plan):
    refused(lambda: serfer.windows(SIZE, plan))


def test_what_is_no_part_of_a_pass_is_refused(place):
    window = serfer.windows(place.image, place.plan)[0]
    refused(lambda: serfer.combine([np.zeros(3)]), "not ndarray")
    refused(lambda: window.run(5), "of another map, or of other passes")
    array = serfer.windows(SIZE, place.plan).passes[0][0]
    for given in (5, None, np.zeros(3), np.zeros((0, 0, 0)), "x"):
        refused(lambda given=given: array.compute(given), "the window reads")


@pytest.fixture(scope="module")
def script():
    page = (ROOT / "docs" / "how-to" / "map-elsewhere.md").read_text(encoding="utf-8")
    names = {"__name__": "to_zarr"}
    exec(re.search(r"```python\n# to_zarr\.py.*?\n(.*?)```", page, re.DOTALL)[1], names)  # noqa: S102 - ours
    return SimpleNamespace(**names)


class Job:
    """A map into zarr as the script of the page writes it, group by group."""

    def __init__(self, script, image, plan, out, **options):
        self.script, self.out, self.windows = script, str(out), serfer.windows(image, plan, **options)
        script.create(self.out, self.windows)

    @cached_property
    def statistics(self):
        [step] = self.windows.passes
        return serfer.combine(window.run() for window in step)

    @property
    def left(self):
        _, done = self.script.open_both(self.out, self.windows.identity)
        return [item for item, there in zip(enumerate(self.windows.groups()), done[:], strict=True) if not there]

    def write(self, items):
        for item in items:
            self.script.write(self.out, self.windows.identity, self.statistics, item)

    @property
    def files(self):
        return {path.name: path.read_bytes() for path in Path(self.out).rglob("*") if path.is_file()}

    @property
    def result(self):
        return zarr.open_array(self.out)[:]


@pytest.fixture
def job(script, place, tmp_path):
    yield (job := Job(script, place.image, place.plan, tmp_path / "out.zarr"))
    del job.windows  # pytest has the job until the file has ended, and would have the plan's threads, too


@pytest.mark.killed
@pytest.mark.parametrize("dies", [False, True], ids=["full disk", "killed"])
def test_chunk_is_whole_or_absent_and_the_map_goes_on_with_what_is_missing(job, made, dies):
    first, second, *_ = job.left
    job.write([first])
    before = job.files
    error, code = Child(job.write, [second], limit=1000, dies=dies).ended()
    assert code == -signal.SIGXFSZ if dies else isinstance(error, OSError)
    assert {name: data for name, data in job.files.items() if not name.endswith(".partial")} == before
    assert dies or job.files == before
    assert [number for number, _ in job.left] == [*range(1, len(job.windows.groups()))]
    job.write(job.left)
    assert job.left == []
    np.testing.assert_array_equal(job.result, made.expected)


def test_windows_that_are_written_again_change_nothing(job):
    job.write(job.left)
    before = job.files
    job.write(enumerate(job.windows.groups()))
    assert job.files == before


@pytest.mark.two_at_once
def test_same_job_twice_at_once_makes_one_result(job, script, place, made):
    other = Job(script, place.image, place.plan, job.out)
    children = [Child(job.write, job.left), Child(other.write, other.left[::-1])]
    assert [child.ended() for child in children] == [(None, 0)] * 2
    assert job.left == []
    np.testing.assert_array_equal(job.result, made.expected)


@pytest.mark.two_at_once
def test_result_that_another_job_writes_is_refused_by_name(job, script, place, tmp_path):
    write(other := tmp_path / "other.tif", pixels(*SIZE, seed=1))
    serfer.map_plan(gated(tmp_path / "g.onnx")[1], [SIZE], tmp_path / "wider", window=48, kept_maps="never")
    for changed in (
        (other, place.plan, {}),
        (place.image, tmp_path / "wider", {}),
        (place.image, place.plan, {"bands": (3, 2, 1)}),
    ):
        image, plan, options = changed
        second = Job(script, image, plan, job.out, **options)
        with pytest.raises(ValueError, match=rf"{re.escape(job.out)} is the result of another map"):
            second.write(enumerate(second.windows.groups()))
    moved = Job(script, place.image, shutil.copytree(place.plan, tmp_path / "moved"), job.out)
    moved.write(moved.left)
    assert job.left == []


@pytest.fixture
def s3(place, monkeypatch, tmp_path):
    with S3Server() as server:
        for name, value in {**server.environment, "SERFER_CACHE_DIR": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it has read another test's variables
        client = boto3.client("s3")
        for path in (place.image, *place.plan.rglob("*")):
            if path.is_file():
                client.upload_file(str(path), server.bucket, f"in/{path.relative_to(place.plan.parent)}")
        yield SimpleNamespace(client=client, bucket=server.bucket, url=f"s3://{server.bucket}/in")
        client.close()


def test_plan_and_image_in_s3_make_what_files_make_or_are_refused_by_name(s3, place, tmp_path, monkeypatch):
    clients, opening = [], objects.open_client
    monkeypatch.setattr(objects, "open_client", lambda *given, **how: clients.append(1) or opening(*given, **how))
    [far], [near] = (
        serfer.windows(image, plan).passes
        for image, plan in ((f"{s3.url}/image.tif", f"{s3.url}/plan"), (place.image, place.plan))
    )
    for number in (0, 5, len(far) - 1):
        np.testing.assert_array_equal(far[number].run().values, near[number].run().values)
    window = far[0]
    assert len(clients) < len(list(place.plan.rglob("*.onnx")))
    close_opened()
    with monkeypatch.context() as other:
        other.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        refused(window.run, "s3://", "SignatureDoesNotMatch")
    shutil.rmtree(tmp_path / "cache")
    error, _ = Child(window.run, limit=1000).ended()
    assert isinstance(error, SerferError)
    assert "cache" in str(error)
    assert window.run().number == 0
    s3.client.upload_file(str(place.plan / "plan.json"), s3.bucket, "in/image.tif")
    refused(window.run, "image.tif was changed")
    close_opened()
    refused(window.run, "image.tif")
    s3.client.delete_object(Bucket=s3.bucket, Key="in/image.tif")
    refused(window.run, "image.tif does not exist")
    s3.client.delete_object(Bucket=s3.bucket, Key="in/plan/plan.json")
    close_opened()
    refused(window.run, "plan.json does not exist")


HOLES = np.kron(np.random.default_rng(0).random((7, 11)) < 0.4, np.ones((10, 10), bool))[:, : SIZE[1]]
MASKED = {
    "mask": (pixels(*SIZE), {}, {}),
    "alpha": (np.concatenate([pixels(*SIZE), ~HOLES[None] * np.uint8(255)]), {"alpha": "YES"}, {"bands": (1, 2, 3)}),
    "png": (np.concatenate([pixels(*SIZE), ~HOLES[None] * np.uint8(255)]), {"driver": "PNG"}, {"bands": (1, 2, 3)}),
    "a band": (np.where([HOLES, HOLES & False, HOLES], 0, pixels(*SIZE) | 1), {"nodata": 0}, {"no_data_bands": "any"}),
}  # fmt: skip


@pytest.mark.exact
@pytest.mark.parametrize("how", MASKED)
def test_windows_of_pixels_without_data_make_the_map(made, tmp_path, pool, how):
    values, profile, options = MASKED[how]
    image = write(
        tmp_path / "image",
        values.astype("uint8"),
        **profile | ({"crs": UTM, "transform": WHERE} if how != "png" else {}),
    )
    if how == "mask":
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(image, "r+") as dataset:
            dataset.write_mask(~HOLES * np.uint8(255))
    result = check_anywhere(image, made.plan, tmp_path, pool, np.random.default_rng(0), **options)
    assert np.isnan(result).any()
    windows = serfer.windows(image, made.plan, **options)
    statistics = serfer.combine(window.compute(window.read()) for window in windows.passes[0])
    for window in windows:
        np.testing.assert_array_equal(window.compute(window.read(), statistics), result[:, *window.writes[0].slices])


def computed(text, statistics):
    return serfer.MapWindow.from_json(text).run(statistics)


def anywhere(windows, pool, rng):
    """Compute windows in random processes and in any order, and put the result together."""
    statistics = None

    def run(some):
        return pool.map(computed, [window.to_json() for window in some], [statistics] * len(some))

    for step in windows.passes:
        sums = [*run([step[int(number)] for number in rng.permutation(len(step))])]
        statistics, before = serfer.combine(sums, statistics), statistics
        assert serfer.combine(sums[::-1], before) == statistics
    order = [windows[int(number)] for number in rng.permutation(len(windows))]
    results = [np.zeros((form.channels, form.height, form.width), form.dtype) for form in windows.results]
    for window, part in zip(order, run(order), strict=True):
        for result, values, rect in zip(
            results, part.values() if isinstance(part, dict) else [part], window.writes, strict=True
        ):
            result[:, *rect.slices] = values
    return results


def check_anywhere(image, plan, folder, pool, rng, **options):
    how = {"workers": "inprocess", "check": False, "overwrite": True, "restart": True}
    report = serfer.map(image, plan, folder / "out.tif", **how, **options)
    for result, form in zip(anywhere(serfer.windows(image, plan, **options), pool, rng), report.results, strict=True):
        np.testing.assert_array_equal(result, read(form.path), strict=True)
    return result


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        yield pool


@pytest.mark.exact
@pytest.mark.filterwarnings("ignore:maps by this plan are not compared:serfer.core.errors.PlanWarning")
@pytest.mark.parametrize(
    ("seed", "numbers"),
    [(FIXED_SEED, FEW), pytest.param(int(os.environ["TEST_SEED"]), WEEKLY, marks=pytest.mark.weekly)],
)
def test_windows_of_random_networks_make_the_map_in_any_order_and_process(tmp_path, pool, seed, numbers):
    rng, mapped = np.random.default_rng(seed), 0
    for case in (draw(seed, number, several=True) for number in numbers):
        plan = tmp_path / f"plan-{case.number}"
        try:
            serfer.map_plan(
                saved(tmp_path, case.model) if hasattr(case.model, "graph") else case.model, case.sizes, plan,
                window=case.window, channels=case.channels, reduce=case.reduce, kept_maps="never", statistics="exact",
            )  # fmt: skip
        except SerferError:
            continue
        size = case.sizes[int(rng.integers(len(case.sizes)))]
        image = write(tmp_path / f"{case.number}-{size[0]}x{size[1]}.tif", case.image(*size)[0])
        check_anywhere(image, plan, tmp_path, pool, rng)
        mapped += 1
    assert mapped >= len(numbers) // 3


@pytest.mark.exact
def test_windows_of_images_of_any_size_make_the_map(tmp_path, pool):
    rng = np.random.default_rng(0)
    (tmp_path / "net.onnx").write_bytes(network())
    small = {"row": [(1, 200)], "small": [(2, 3)]}
    with pytest.raises(SerferError, match="too small to have windows"):
        serfer.map_plan(tmp_path / "net.onnx", [(1, 1)], tmp_path / "small")
    for name, sizes in small.items():
        serfer.map_plan(tmp_path / "net.onnx", sizes, tmp_path / name, window=32)
    serfer.map_plan(tmp_path / "net.onnx", "any", tmp_path / "any", window=64)
    drawn = [tuple(map(int, rng.integers(68, 300, 2))) for _ in range(2)]
    for plan, size in [(name, size) for name, some in (small | {"any": drawn}).items() for size in some]:
        image = write(tmp_path / f"{size[0]}x{size[1]}.tif", pixels(*size))
        check_anywhere(image, tmp_path / plan, tmp_path, pool, rng)
    for size in ((1, 1), (35, 300), (300, 35), (2**31 - 1, 2**31 - 1)):
        refused(lambda size=size: serfer.windows(size, tmp_path / "any"), "the array has")
