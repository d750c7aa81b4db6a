"""Every engine on every store gives the same answer, and leaves nothing behind."""

import json
import os
import sys
import time

import numpy as np
import pytest
from pydantic import SecretStr

import serfer
from serfer.core.errors import UsageError
from serfer.core.exactness import difference
from serfer.local.server import free_port
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.storage import open_store
from serfer.wiring.options import DRIVERS
from tests.e2e.small import batch


class TestPoll:
    @pytest.mark.exact
    def test_the_poll_driver_equals_the_unsplit_model(self, lean, settings, tmp_path):
        with serfer.open(lean, store=f"file://{tmp_path / 'store'}", driver="poll", settings=settings) as pipeline:
            whole = unsplit(pipeline.plan, lean)
            for images in (batch(1), batch(3, seed=1)):
                assert difference(pipeline.run(images), whole(images)).exact
            report = pipeline.last_report
            assert report.store.exists >= sum(stage.tasks for stage in report.stages)
            assert report.retries == 0


class TestCache:
    def test_answer_of_a_path_answers_for_its_bytes_and_its_pixels_alone(self, plan, settings, examples):
        rocket, coffee = examples / "rocket.jpg", examples / "coffee.png"
        with serfer.open(plan, cache_s=60, settings=settings) as pipeline:
            first = pipeline.classify([rocket], names=["one"])
            assert pipeline.last_report.target == "serverless"
            again = pipeline.classify([rocket.read_bytes()], names=["two"], top_k=2)
            report = pipeline.last_report
            assert (report.target, report.stages, report.cost_usd) == ("cache", (), 0.0)
            assert (again[0].predictions, again[0].name) == (first[0].predictions[:2], "two")
            for ask, images, target in (
                (pipeline.classify, [coffee], "serverless"),
                (pipeline.predict, [rocket], "cache"),
                (pipeline.classify, [rocket, coffee], "serverless"),
            ):
                ask(images)
                assert pipeline.last_report.target == target

    @pytest.mark.two_at_once
    def test_arrays_and_concurrent_repeats_are_answered_from_the_cache(self, plan, settings):
        with serfer.open(plan, cache_s=60, settings=settings) as pipeline:
            logits = pipeline.run(batch(2))
            assert np.array_equal(pipeline.submit(batch(2)).result().logits, logits)
            assert pipeline.last_report.target == "cache"
            pipeline.run(batch(2)[::-1])
            assert pipeline.last_report.target == "serverless"

    def test_from_the_command_line(self, serfer_here, plan, examples, tmp_path):
        picture = examples / "rocket.jpg"
        common = ("classify", picture, picture, "--plan", plan, "--workers", "inprocess", "--json")
        first, second = (json.loads(line) for line in serfer_here(*common, "--set", "cache_s=60").lines)
        assert (first["target"], second["target"]) == ("serverless", "cache")
        assert second["images"] == first["images"]
        result = serfer_here(*common[:-1], "--set", "cache_s=60", "--trace", "kept.json")
        assert "from the cache" in result.out
        events = json.loads((tmp_path / "kept.json").read_text())["traceEvents"]
        assert [event["name"] for event in events if event["ph"] == "X"].count(str(picture)) == 2


class TestWarm:
    def test_warm_environments_are_not_started_again(self, lean, settings, redis):
        with serfer.open(lean, store=redis, workers="local", settings=settings) as pipeline:
            reports = pipeline.warm()
            assert [(one.asked, one.warm, one.started) for one in reports] == [(2, 2, 2), (1, 1, 1)]
            assert all(one.slowest_start_ms > 0 and one.problem is None for one in reports)
            pipeline.run(batch(1))
            assert sum(stage.cold for stage in pipeline.last_report.stages) == 0
            assert [one.started for one in pipeline.warm()] == [0, 0]

    def test_workers_in_process_are_always_warm(self, plan, settings):
        with serfer.open(plan, settings=settings) as pipeline, pytest.raises(UsageError, match="always warm"):
            pipeline.warm()


class TestDeployed:
    """`--workers aws` against the local Lambda service, found as boto3 finds it."""

    @pytest.fixture
    def service(self, lean, settings, redis):
        port = free_port()
        access = {"local_port": port, "local_access": SecretStr("local:local-secret-of-a-test")}
        here = settings.model_copy(update=access)
        with serfer.open(lean, store=redis, workers="local", settings=here):
            yield {
                "AWS_ENDPOINT_URL_LAMBDA": f"http://127.0.0.1:{port}",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "local",
                "AWS_SECRET_ACCESS_KEY": "local-secret-of-a-test",
            }

    def test_deployed_functions_are_warmed_up_and_invoked(self, service, serfer_here, lean, redis, examples):
        warmed = serfer_here("deploy", "warm", "--plan", lean, "--store", redis, "--json", own_service=True, **service)
        assert [json.loads(line)["started"] for line in warmed.lines] == [2, 1]
        common = ("classify", examples / "rocket.jpg", "--plan", lean, "--workers", "aws", "--store", redis, "--json")
        for driver in ("push", "poll"):
            report = json.loads(serfer_here(*common, "--set", f"engine={driver}", own_service=True, **service).out)
            assert sum(stage["cold"] for stage in report["stages"]) == 0

    @pytest.mark.who_may
    def test_without_credentials_or_region(self, serfer_here, plan, redis, examples):
        common = ("classify", examples / "rocket.jpg", "--plan", plan, "--workers", "aws", "--store", redis)
        nothing = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}
        serfer_here(*common, **nothing).complains(4, "--workers aws: ", "AWS_DEFAULT_REGION")
        serfer_here(*common, **nothing, AWS_DEFAULT_REGION="us-east-1").complains(4, "--workers aws: no credentials")

    def test_an_invalid_endpoint_address_is_refused(self, serfer_here, plan, redis, examples, service):
        common = ("classify", examples / "rocket.jpg", "--plan", plan, "--workers", "aws", "--store", redis)
        result = serfer_here(*common, **{**service, "AWS_ENDPOINT_URL_LAMBDA": "garbage"})
        result.complains(2, "AWS_ENDPOINT_URL_LAMBDA")


class TestPluggedIn:
    """A store of the user's own, installed beside SerFer, reaches workers that are processes too."""

    @pytest.fixture
    def installed(self, tmp_path, monkeypatch):
        site = tmp_path / "site"
        information = site / "my_store-1.0.dist-info"
        information.mkdir(parents=True)
        files = {
            "my_store.py": "from my_help import MyStore\n",
            "my_store-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-store\nVersion: 1.0\n"
            "Requires-Dist: my-help\nRequires-Dist: numpy\nRequires-Dist: absent; extra == 'more'\n",
            "my_store-1.0.dist-info/entry_points.txt": "[serfer.stores]\nmine = my_store:MyStore\n",
            "my_help.py": "from pathlib import Path\nfrom serfer.storage.file.store import FileStore\n"
            "class MyStore(FileStore):\n"
            "    def __init__(self, url):\n"
            "        super().__init__(Path(url.removeprefix('mine://')))\n",
            "my_help-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: my_help\nVersion: 2.0\n",
        }
        (site / "my_help-2.0.dist-info").mkdir()
        for name, text in files.items():
            (site / name).write_text(text)
        for name in ("my_store", "my_help"):
            record = [*(file for file in files if file.startswith(name))]
            (next(site.glob(f"{name}-*")) / "RECORD").write_text("".join(f"{file},,\n" for file in record))
        monkeypatch.syspath_prepend(site)
        yield site
        for name in ("my_store", "my_help"):
            sys.modules.pop(name, None)

    @pytest.mark.slow
    @pytest.mark.usefixtures("installed")
    def test_every_engine_works_on_a_third_party_store(self, serfer_here, lean, examples, tmp_path):
        picture, url = examples / "rocket.jpg", f"mine://{tmp_path / 'kept'}"
        for driver in ("push", "poll"):
            result = serfer_here(
                "classify", picture, "--plan", lean, "--store", url, "--set", f"engine={driver}", "--json"
            )
            assert json.loads(result.out)["store"]["puts"] > 0
        assert [path.name for path in (tmp_path / "kept").iterdir()] == ["#lock"]

    def test_a_store_package_that_cannot_be_packed_is_named(self, serfer_here, lean, examples, installed, tmp_path):
        for record in installed.glob("*/RECORD"):
            record.write_text("")
        picture, url = examples / "rocket.jpg", f"mine://{tmp_path / 'kept'}"
        result = serfer_here("classify", picture, "--plan", lean, "--store", url)
        result.complains(3, "my-store", "cannot be packed")


WEEKLY = {
    *(("poll", "cluster"), ("stepfunctions", "cluster"), ("stepfunctions-express", "cluster")),
    *(("stepfunctions", "file"), ("stepfunctions-express", "redis")),
}


@pytest.mark.exact
@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver", "kind"),
    [
        pytest.param(driver, kind, marks=pytest.mark.weekly if (driver, kind) in WEEKLY else ())
        for driver in DRIVERS
        for kind in ("file", "redis", "cluster", "s3")
    ],
)
def test_every_engine_gives_the_same_logits_on_every_store(lean, settings, driver, kind, url_of):
    url, images = url_of(kind), batch(2)
    expected = unsplit(load_plan(lean), lean)(images)
    with serfer.open(lean, store=url, workers="local", driver=driver, settings=settings) as pipeline:
        for _ in range(2):
            assert difference(pipeline.run(images), expected).exact
    with open_store(url) as store:
        if kind == "s3":
            assert store.sweep(older_than_s=0.0, now=time.time() + 1e6) == 0  # nothing was left to expire
