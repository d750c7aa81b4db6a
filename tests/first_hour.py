"""README's commands on an ONNX file, by the `serfer` of the Python that runs this: `python tests/first_hour.py [PLAN]`.

A network is served and asked by curl, split and compared, and PLAN, which another Python has made, is asked, too.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGE = ROOT / "examples" / "images" / "chelsea.png"
SERFER = Path(sys.executable).with_name("serfer")


def main(plan=None):
    sys.path.append(str(ROOT))  # last: serfer is the installed one
    from tests.e2e.small import small_onnx  # noqa: PLC0415 - only now on the path

    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "net.onnx").write_bytes(small_onnx().SerializeToString())
        serve = [SERFER, "serve", "net.onnx", "--port", "0", "--json"]
        with subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE) as server:
            try:
                url = json.loads(server.stdout.readline())["url"]
                ask = ["curl", "--silent", "--show-error", "--fail", "-F", f"image=@{IMAGE}", f"{url}/v1/classify"]
                answer = json.loads(subprocess.run(ask, stdout=subprocess.PIPE, check=True).stdout)
            finally:
                server.terminate()
        if server.returncode not in {0, 128 + 15} or not answer["images"][0]["predictions"]:
            sys.exit(f"serve ended with {server.returncode} and answered {answer}")
        subprocess.run([SERFER, "split", "net.onnx", "--grids", "2x2,1", "--out", "plan"], cwd=folder, check=True)
        subprocess.run([SERFER, "verify", "plan"], cwd=folder, check=True)
        subprocess.run([SERFER, "classify", "plan", IMAGE], cwd=folder, check=True)
        if plan is not None:
            subprocess.run([SERFER, "classify", IMAGE, "--plan", plan, "--compare"], cwd=folder, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
