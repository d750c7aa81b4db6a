"""`serfer map` over many images: what fails is listed, the others go on, and a later run does what is left."""

import io
import json

import numpy as np
import pytest

import serfer as package
from serfer.core.errors import UsageError
from serfer.mapping.image_list import map_items
from tests.mapping.plans import HEIGHT, WIDTH, assert_equal, expected, map_command, read
from tests.moto_server import ACCESS, MotoServer
from tests.raster.files import UTM, WHERE, pixels, write


@pytest.fixture
def bucket(monkeypatch):
    """A client of an S3 with a bucket `maps`, and URLs of it that say where it is."""
    with MotoServer() as server, server.client("s3") as client:
        for name, value in {**ACCESS, "AWS_EC2_METADATA_DISABLED": "true"}.items():
            monkeypatch.setenv(name, value)
        client.create_bucket(Bucket="maps")
        yield client, lambda key: f"s3://maps/{key}?endpoint={server.url}&region=us-east-1"


def lines(output):
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def folder(tmp_path):
    """Three images, one of a size that the plan is not for, and a file that is not an image."""
    images = tmp_path / "images"
    (images / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.tif", "deep/b.tif")):
        write(images / name, pixels(HEIGHT, WIDTH, seed=number), crs=UTM, transform=WHERE)
    write(images / "c.png", pixels(50, WIDTH), driver="PNG")
    (images / "notes.txt").write_text("not an image")
    return images


@pytest.fixture
def many(serfer, folder, plan, tmp_path):
    def run(*more, images=(folder,)):
        return serfer("map", *images, "--plan", plan, "--out", tmp_path / "results", "--workers", "inprocess", *more)

    return run


def test_a_folder_is_mapped_but_for_the_images_that_the_plan_is_not_for(many, folder, tmp_path):
    done = many("--json").ends(1)
    *reports, summary = lines(done.out)
    assert [report["image"] for report in reports] == [str(folder / "a.tif"), str(folder / "deep/b.tif")]
    assert [*summary["failed"]] == [str(folder / "c.png")]
    assert "50 x 80 pixels" in summary["failed"][str(folder / "c.png")]
    assert summary["cost_usd"] == pytest.approx(sum(report["cost_usd"] for report in reports))
    results = tmp_path / "results"
    assert_equal(read(results / "a.tif"), expected(pixels(HEIGHT, WIDTH)))
    assert_equal(read(results / "deep/b.tif"), expected(pixels(HEIGHT, WIDTH, seed=1)))
    assert (results / "retry.txt").read_text() == f"{folder / 'c.png'}\n"
    manifest = lines((results / "manifest.jsonl").read_text())
    assert [bool(line["error"]) for line in manifest] == [False, True, False]
    names = sorted(path.name for path in results.rglob("*") if path.is_file())
    assert names == ["a.tif", "b.tif", "manifest.jsonl", "retry.txt"]


def test_list_of_other_images_is_refused_and_kept(many, tmp_path):
    left = tmp_path / "results" / "retry.txt"
    left.parent.mkdir()
    left.write_text("call the dentist\n")
    many().ends(3, "retry.txt lists no images of this map: move it, or choose another --out")
    assert left.read_text() == "call the dentist\n"


def test_a_later_run_does_what_is_missing_altered_or_changed(many, folder, tmp_path):
    many()
    results = tmp_path / "results"
    write(folder / "c.png", pixels(48, WIDTH), driver="PNG")
    again = lines(many("--json").out)
    assert [report["image"] for report in again[:-1]] == [str(folder / "c.png")]
    assert again[-1]["skipped"] == 2
    assert not (results / "retry.txt").exists()
    (results / "a.tif").unlink()
    (results / "deep" / "b.tif").write_bytes(b"altered")
    third = many("--json").ends(1)
    assert [report["image"] for report in lines(third.out)[:-1]] == [str(folder / "a.tif")]
    [error] = lines(third.out)[-1]["failed"].values()
    assert "b.tif exists" in error
    write(folder / "a.tif", pixels(HEIGHT, WIDTH, seed=7))
    fourth = many("--json", "--overwrite").ends(0)
    assert [report["image"] for report in lines(fourth.out)[:-1]] == [str(folder / "a.tif"), str(folder / "deep/b.tif")]
    assert_equal(read(results / "a.tif"), expected(pixels(HEIGHT, WIDTH, seed=7)))


def test_the_python_function_goes_on_where_the_command_was(many, folder, plan, tmp_path):
    many()
    (tmp_path / "results" / "a.tif").unlink()
    report = package.map_many([folder], plan, tmp_path / "results")
    assert [done.image for done in report.done] == [str(folder / "a.tif")]
    assert (report.skipped, [*report.failed]) == (1, [str(folder / "c.png")])


def test_a_cut_manifest_loses_only_its_last_line(many, folder, tmp_path):
    many()
    manifest = tmp_path / "results" / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes() + b'{"image": "half')
    assert lines(many("--json").out)[-1]["skipped"] == 2
    assert json.loads(manifest.read_text().splitlines()[-1])["image"] == str(folder / "c.png")


def test_dollars_end_all_images_and_name_those_that_are_left(many, folder, tmp_path):
    (folder / "c.png").unlink()
    usd = sum(estimate["usd"] for estimate in lines(many("--dry-run", "--json").out))
    assert not (tmp_path / "results").exists()
    many("--max-cost-usd", usd / 2).ends(2, "2 images are predicted to cost")
    stopped = many("--max-cost-usd", usd / 50, "--set", "force=true", "--json").ends(1)
    summary = lines(stopped.out)[-1]
    assert [*summary["failed"], *summary["untried"]] == [str(folder / "a.tif"), str(folder / "deep/b.tif")]
    left = tmp_path / "results" / "retry.txt"
    many("--set", f"image_list={left}", images=()).ends(0)


def test_results_of_one_name_and_results_over_images_are_refused(tmp_path):
    for name in ("a.tif", "a.png"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match="would have one result"):
        map_items([str(tmp_path)], str(tmp_path / "out"), ".tif")
    with pytest.raises(UsageError, match="would replace an image"):
        map_items([str(tmp_path / "a.tif")], str(tmp_path), ".tif")


def test_a_prefix_of_s3_is_mapped_into_another(serfer, report_of, plan, bucket, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client, url = bucket
    for name in ("a.tif", "deep/b.tif"):
        client.put_object(Bucket="maps", Key=f"in/{name}", Body=(folder / name).read_bytes())
    command = map_command(url("in/"), plan, url("out/"), "--set=suffix=.npy")
    report_of(*command)
    body = client.get_object(Bucket="maps", Key="out/deep/b.npy")["Body"].read()
    assert_equal(np.load(io.BytesIO(body)), expected(pixels(HEIGHT, WIDTH, seed=1)))
    listed = client.list_objects_v2(Bucket="maps", Prefix="out/")["Contents"]
    assert [entry["Key"] for entry in listed] == ["out/a.npy", "out/deep/b.npy", "out/manifest.jsonl"]
    assert lines(serfer(*command, "--json").out)[-1]["skipped"] == 2
