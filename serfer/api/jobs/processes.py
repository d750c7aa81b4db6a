"""Processes for what a driver must not do itself, such as unpacking what was uploaded; they end with the driver."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, UnavailableError
from serfer.local.die_with_parent import dying_with_me
from serfer.variants.unpacking import ImageFolder, UnpackJob

_UNPACKING_S: Final = 900.0
_GRACE_S: Final = 20.0  # for a process that is interrupted
_PIPE: Final = asyncio.subprocess.PIPE
_PLAIN: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # no secrets, and few addresses


async def unpack(job: UnpackJob) -> ImageFolder:
    """Unpack an archive in a process with limits, and delete it; raises InputError that says what is wrong with it."""
    process = await started("serfer.variants.unpacking", job, stderr=_PIPE, env=_PLAIN)
    try:
        async with asyncio.timeout(_UNPACKING_S):
            out, error = await process.communicate()
    except TimeoutError:
        raise InputError(f"{job.called} takes more than {_UNPACKING_S:g} s to unpack: send fewer files") from None
    finally:
        await end(process, signal.SIGKILL)
    if process.returncode == 0:
        await asyncio.to_thread(Path(job.archive).unlink)
        return structure(ImageFolder, json.loads(out), "unpacked", error=UnavailableError)
    if process.returncode == InputError.exit_code:
        raise InputError(error.decode(errors="replace").strip()[:500])
    raise InputError(f"{job.called} takes too much memory or processor time to unpack: send fewer or smaller files")


async def started(module: str, job: Any, **how: Any) -> asyncio.subprocess.Process:  # noqa: ANN401 - a dataclass; options
    """Start a module's process with its job; call it in a thread that lives as long as the driver does."""
    command = dying_with_me(sys.executable, "-P", "-m", module)
    options = {"stdin": _PIPE, "stdout": _PIPE, "stderr": asyncio.subprocess.DEVNULL, "env": os.environ, **how}
    options["env"] = {**options["env"], "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True, **options)
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.write(json.dumps(unstructure(job)).encode())
    process.stdin.close()
    return process


async def end(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal a process that runs, and kill it where that does not end it."""
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.send_signal(number)
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
