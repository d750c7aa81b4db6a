"""The commands of README, the tutorial and the how-to pages run as they are printed; what cannot run here is parsed.

The shell blocks of a page are one script of bash, in a folder where small networks and images have the names that the
page uses. A server (`serfer serve`, `serfer instance`) runs until the next one or the end of the page.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from serfer.local.server import free_port
from tests.caches import new_cache
from tests.control.worlds import LARGE
from tests.e2e.dense import dense_onnx
from tests.e2e.small import LABELS, small_onnx
from tests.mapping import detectors
from tests.raster.files import UTM, WHERE, pixels, write
from tests.test_docs import lines_of

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "examples" / "images"
PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
FAST = {"README.md", "serve-a-file.md"}  # what `make test` runs
ONLY_PARSED = {
    r"^(make|pip|python3) |/pip ": "sets up an environment; tests/test_packaging.py",
    r"s3://|--stack|--aws|deploy (apply|destroy|smoke)|measure-aws": "an account of AWS; tests/sam, on emulators",
    r"deploy package|cost build": "wheels from a package index; tests/sam/test_wheels.py",
    r"alexnet|vgg16|--device|study tune|bench |jq .target": "minutes, or a GPU; tests/e2e, instance, bench",
    r"study (replay|simulator|paper|policies|train|fetch)|policy half_hour.py:HalfHour$": "minutes; tests/study",
    r"forecaster=lstm.npz|--scenario cluster": "minutes, or what a command which is not run writes; tests/study",
    r"app (promote|canary|rollback|retire|delete|fetch)": "releases before and after it; tests/cli/registry",
    r"--yield-to|--port 8100|static:": "two servers at once; tests/mapping, tests/e2e/test_variant_instances.py",
    r"\b[A-Z][A-Z_]+\b(?!=)(?<!API)(?<!HOME)(?<!PWD)": "the reader's own name, or one that a command has printed",
    r"/srv/|/var/|/mnt/": "a folder of the reader's machine",
}
"""Commands that match are parsed and not run, for this reason; after it, where something like them runs."""


def without_comment(line):
    return re.sub(r"\s+#.*$", "", line)


def reason_not_to_run(line):
    return next((why for pattern, why in ONLY_PARSED.items() if re.search(pattern, without_comment(line))), None)


# What stands under the names of the pages.


def resizable_onnx():
    """A network of convolutions for images of any size."""
    model = dense_onnx(["scores"])
    for value in (*model.graph.input, *model.graph.output):
        for axis in (2, 3):
            value.type.tensor_type.shape.dim[axis].dim_param = f"axis{axis}"
    return model


MODULE = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)).eval()
"""
LOG = "".join(
    f'192.0.2.1 - - [25/Nov/2026:13:{n // 60:02}:{n % 60:02} +0000] "POST /v1/classify HTTP/1.1" 200 99\n'
    for n in range(600)
)
TEXTS = {
    "net.py": MODULE,
    "scenario.toml": LARGE,
    "labels.txt": "\n".join(LABELS),
    "coco.txt": "cat\ndog\nbird",
    **dict.fromkeys(("images.toml", "preprocess.toml"), "resize = 36\n"),
    "pixels.toml": "mean = [0.5, 0.5, 0.5]\nstd = [0.2, 0.2, 0.2]\n",
    "letterbox.toml": 'pad = "centre"\n',
    **dict.fromkeys(("week.csv", "trace.csv"), "t_seconds,rps\n" + "".join(f"{3600 * n},{n % 7}\n" for n in range(48))),
}
NETWORKS = {
    **dict.fromkeys(("net.onnx", "model.onnx", "resnet18.onnx"), small_onnx),
    **dict.fromkeys(("crops.onnx", "det.onnx", "rec.onnx"), resizable_onnx),
    "segmentation.onnx": lambda: dense_onnx(["scores"]),
    "other/resnet18.onnx": lambda: small_onnx(1),
}
SHOWN = {
    "tutorial.md": {"shapes.py": "python", "preprocess.toml": "toml", "labels.txt": "text"},
    "add-a-policy.md": {"half_hour.py": "python"},
}
MAPPED = {"net.onnx": resizable_onnx}
ULTRALYTICS = {"stride": "32", "names": "{0: 'cat', 1: 'dog', 2: 'bird'}", "task": "detect", "imgsz": "[192, 256]"}
PICTURES = ("photo.jpg", "my.jpg", "a.jpg", "b.jpg", "cat.jpg", "street.jpg", "yard.png")


def prepare(folder, page):
    (folder / "examples").mkdir()
    (folder / "examples" / "images").symlink_to(IMAGES)
    (folder / ".venv").symlink_to(sys.prefix)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    (folder / "other").mkdir()
    for name, make in (NETWORKS | (MAPPED if page.name == "map.md" else {})).items():
        onnx.save(make(), folder / name)
    for name in ("yolov8n.onnx", "detector.onnx"):
        detectors.save(folder / name, (192, 256), metadata=ULTRALYTICS)
    for name in PICTURES:
        shutil.copy(IMAGES / ("chelsea.png" if name.endswith("png") else "rocket.jpg"), folder / name)
    (folder / "access.log.gz").write_bytes(gzip.compress(LOG.encode()))
    photos = [] if page.name == "applications.md" else [f"photos/{label}" for label in range(len(LABELS))]
    for path in (*photos, *(f"portraits/{label}" for label in LABELS)):  # a folder for each class
        (folder / path).mkdir(parents=True)
        shutil.copy(IMAGES / "rocket.jpg", folder / path)
    (folder / "scans").mkdir()
    for name in ("field.tif", "field-1.tif", "field-2.tif", "scans/one.tif"):
        write(folder / name, pixels(224, 256), crs=UTM, transform=WHERE)
    np.save(folder / "page.npy", np.zeros((1, 3, 64, 96), np.float32))
    for name, language in SHOWN.get(page.name, {}).items():
        code = re.search(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]
        (folder / name).write_text(code)


BEFORE = {
    "trace.md": ["serfer split net.onnx --grids 2x2,1 --out plan"],
    "bill.md": ["serfer split net.onnx --grids 2x2,1 --out plan"],
    "simulate.md": ["serfer split net.onnx --grids 2x2,1 --out plan"],
    "applications.md": [
        "serfer app register resnet18.onnx --app faces --validation portraits --labels labels.txt --registry registry",
        "serfer split other/resnet18.onnx --labels labels.txt --out plan",
    ],
}
"""Commands that make what a page takes as given."""
SAID = {"tutorial.md": ["2x2", "circle|square|triangle", "same first class", r"\$", '"predictions"', "wrote plan.png"]}
"""What a page's commands print."""
PRELUDE = r"""
set -euo pipefail
server=
stop() { if [ -n "$server" ]; then kill "$server"; wait "$server" || true; server=; fi; }
start() {
  stop
  "$@" >> server.log 2>&1 & server=$!
  until command curl -sf "localhost:$SERFER_PORT/v2/health/ready"; do kill -0 "$server"; sleep 0.2; done
}
curl() { command curl -sS --fail-with-body "${@/localhost:8000/localhost:$SERFER_PORT}"; }
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
trap stop EXIT
"""


def script_of(page):
    lines = [re.sub(r" &(\s+#.*)?$", "", line) for line in lines_of(page) if reason_not_to_run(line) is None]
    server = r"^((?:\w+=\S+ )*)(?=(\.venv/bin/)?serfer (serve|instance)\b)"
    started = [re.sub(server, r"\1start ", line) for line in lines]
    return PRELUDE + "\n".join([*BEFORE.get(page.name, ()), *started]) + "\n"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return new_cache(tmp_path_factory)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=() if page.name in FAST else pytest.mark.slow)
        for page in PAGES
        if any(reason_not_to_run(line) is None for line in lines_of(page))
    ],
)
def test_commands_of_page_run(page, tmp_path, cache):
    prepare(tmp_path, page)
    (tmp_path / "script").write_text(script_of(page))
    environment = os.environ | {
        "HOME": str(tmp_path),
        "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SERFER_PORT": str(free_port()),
        "SERFER_CACHE_DIR": str(cache),
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"),
    }
    with (tmp_path / "output").open("w") as output:
        command = [shutil.which("bash"), "-c", "exec bash script < /dev/null 2>&1"]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, stdout=output, check=False)
    log, printed = tmp_path / "server.log", (tmp_path / "output").read_text()
    assert ended.returncode == 0, printed[-3000:] + (log.read_text() if log.exists() else "")
    assert [said for said in SAID.get(page.name, ()) if not re.search(said, printed)] == [], printed


def test_every_reason_not_to_run_has_a_command():
    lines = [without_comment(line) for page in PAGES for line in lines_of(page)]
    assert [pattern for pattern in ONLY_PARSED if not any(re.search(pattern, line) for line in lines)] == []
