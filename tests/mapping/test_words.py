"""What `serfer map` says: before it starts, while it runs, when it is stopped, and to a second process."""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from serfer.cli.shared import map_display
from serfer.cli.shared.map_display import MapDisplay
from serfer.core.errors import PlanError
from serfer.mapping.engine import Spending
from serfer.mapping.report import MapProgress
from serfer.pipeline.blocking import Pipeline
from serfer.raster.georeference import Georeference
from tests.mapping.plans import HEIGHT, WIDTH, assert_equal, expected, map_command, read
from tests.raster.files import UTM, WHERE, pixels, write_scans


def test_work_and_dollars_are_said_before_a_map_starts_and_a_dry_run_writes_nothing(serfer, command, tmp_path):
    done = serfer(*command, "--dry-run")
    assert "64 x 80 pixels, 20 windows" in done.out
    assert "a megapixel, $" in done.out
    assert "a km²)" in done.out
    estimate = serfer(*command, "--dry-run", "--json").report
    assert estimate["missing"] == 20
    assert 0 < estimate["overlap"] < 0.5
    assert estimate["seconds"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["image.tif"]
    assert estimate["usd_per_megapixel"] == pytest.approx(estimate["usd"] * 1e6 / (HEIGHT * WIDTH))
    assert estimate["usd_per_km2"] == pytest.approx(4 * estimate["usd_per_megapixel"]), "pixels of half a metre"
    started = serfer(*command)
    assert "20 windows; overlaps add" in started.err
    assert "a km²)" in started.err


@pytest.mark.parametrize(
    ("crs", "square_metres"),
    [("EPSG:32633", 0.25), ("EPSG:2225", 0.25 * (1200 / 3937) ** 2), ("EPSG:4326", None), ("EPSG:3857", None)],
)
def test_a_pixel_has_square_metres_where_its_reference_system_is_true_to_scale(crs, square_metres):
    import rasterio  # noqa: PLC0415 - of an extra

    place = Georeference(rasterio.CRS.from_string(crs).to_wkt(), tuple(WHERE)[:6])
    assert place.pixel_m2 == (None if square_metres is None else pytest.approx(square_metres))
    assert Georeference(None, tuple(WHERE)[:6]).pixel_m2 is None


@pytest.mark.parametrize(("times", "said"), [(3.0, "took 3.0 times as long as"), (0.5, "took 50% as long as"), (1, "")])
def test_dollars_are_explained_where_they_were_not_predicted(serfer, command, monkeypatch, times, said):
    settle = Spending.settle
    monkeypatch.setattr(Spending, "settle", lambda spending, usd, _: settle(spending, usd, times * usd))
    out = serfer(*command).out
    assert f"dollars are for time: a window {said} predicted" in out if said else "dollars are for time" not in out


class TestProgress:
    """Lines where no terminal is watched."""

    @pytest.fixture
    def shown(self, monkeypatch):
        now = [0.0]
        monkeypatch.setattr(map_display, "monotonic", lambda: now[0])
        display = MapDisplay()

        def show(second, **said):
            now[0] = second
            display.progress(MapProgress("a.tif", 100_000, 0, int(second), 0, 0.5, second, **said))

        return show

    @pytest.fixture
    def lines(self, monkeypatch):
        lines = []
        monkeypatch.setattr(map_display, "complain", lines.append)
        return lines

    def test_map_of_ten_hours_says_some_hundred_lines(self, lines, shown):
        for second in range(36_000):
            shown(second)
        assert 60 < len(lines) < 150
        assert "a.tif: 31 of 100,000 windows, 1.00 a second, 27.8 h left, $0.500000" in lines[0]

    def test_pauses_are_said_at_once_but_not_without_end(self, lines, shown):
        for second in range(1000):
            shown(second, paused="the service is busy" if second % 4 > 1 else "")
        assert "paused: the service is busy" in lines[0]
        assert len(lines) < 50

    def test_writing_the_result_is_said_in_place_of_seconds_that_are_left(self, lines, shown):
        shown(31.0)
        shown(32.0, doing="writing the result")
        assert lines[1].endswith("windows, writing the result, $0.500000")


@pytest.fixture
def stopped(monkeypatch):
    def by(error):
        submit, calls = Pipeline.submit, []

        def failing(pipeline, batch, **given):
            calls.append(1)
            if len(calls) > 7:
                raise error
            return submit(pipeline, batch, **given)

        monkeypatch.setattr(Pipeline, "submit", failing)

    return by


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (PlanError("the functions are those of another plan"), 3)]
)
def test_whatever_stops_a_map_it_says_what_is_kept_and_how_to_go_on(serfer, command, stopped, tmp_path, error, code):
    stopped(error)
    serfer(*command, "--set", "concurrency=1").ends(
        code, f"7 of 20 windows are kept in {tmp_path / 'result.tif.parts'}: run the same command again"
    )


@pytest.mark.killed
def test_an_interrupted_folder_says_how_many_images_are_done_and_lists_the_others(serfer, plan, tmp_path, before_part):
    scans = write_scans(tmp_path / "scans", dict.fromkeys("012", (HEIGHT, WIDTH)))
    before_part(24, KeyboardInterrupt())
    command = map_command(scans, plan, tmp_path / "out")
    serfer(*command, "--set", "concurrency=1").ends(130, "1 of 3 images are mapped, those that are left are listed in")
    assert (tmp_path / "out" / "retry.txt").read_text().split() == [str(scans / name) for name in ("1.tif", "2.tif")]
    assert serfer(*command).code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.tif", "1.tif", "2.tif", "manifest.jsonl"]


HOLD = """
import sys
from serfer.raster import ResultParts
put = ResultParts.put
def waiting(self, number, values):
    put(self, number, values)
    if number == 3:
        print("holding", flush=True)
        sys.stdin.readline()
ResultParts.put = waiting
from serfer.cli.main import main
main()
"""


@contextmanager
def waiting(command):
    """Run a command in another process, which waits for the end of the block after its fourth window."""
    arguments = [sys.executable, "-c", HOLD, *map(str, command), "--set", "concurrency=1"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holding\n"
        yield
        process.communicate("\n\n\n", timeout=60)
        assert process.returncode == 0


@pytest.mark.parametrize(("mine", "yours"), [("mine", "yours"), (None, "yours")])
def test_a_second_process_on_one_result_is_refused_wherever_its_parts_are(serfer, command, tmp_path, mine, yours):
    mine, yours = (["--set", f"parts={tmp_path / name}"] if name else [] for name in (mine, yours))
    with waiting((*command, *mine)):
        for other in (yours, [] if mine else yours):
            serfer(*command, *other).ends(4, "result.tif", "is in use by another process")
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tif", "result.tif"]


def test_a_second_process_on_one_folder_is_refused(serfer, plan, tmp_path):
    scans = write_scans(tmp_path / "scans", dict.fromkeys("01", (HEIGHT, WIDTH)), crs=UTM, transform=WHERE)
    command = map_command(scans, plan, tmp_path / "out")
    with waiting(command):
        serfer(*command).ends(4, f"{tmp_path / 'out'} is in use by another process")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.tif", "1.tif", "manifest.jsonl"]
