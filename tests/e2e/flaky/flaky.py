"""A worker that fails a tile's attempts first, as often as files named STAGE-TILE-NUMBER say, with the error inside."""

import os
from pathlib import Path

from serfer.lambdas.bootstrap import handler as work


def handler(event, context):
    if step := event.get("step"):
        for file in sorted(Path(os.environ["FLAKY"]).glob(f"{step['stage']}-{step['tile']}-*")):
            name = file.read_text(encoding="utf-8")
            file.unlink()
            raise type(name, (Exception,), {})("on purpose")
    return work(event, context)
