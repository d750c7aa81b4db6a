"""Runs uv with the package index that pip is configured with: `python tests/uv.py pip install ...`."""

import os
import subprocess
import sys
from pathlib import Path

UV = str(Path(sys.executable).with_name("uv"))


def environment():
    """Return this process's variables, and in them the index: uv reads no configuration of pip."""
    configured = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = (
        os.environ.get("PIP_INDEX_URL")
        or subprocess.run(
            configured, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
        ).stdout.strip()
    )
    return os.environ | ({"UV_DEFAULT_INDEX": index} if index else {})


if __name__ == "__main__":
    sys.exit(subprocess.run([UV, *sys.argv[1:]], env=environment(), check=False).returncode)
