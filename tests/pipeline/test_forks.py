"""A pipeline and a client in a fork of their process: refused at once, and the process itself goes on."""

import subprocess
import sys

import pytest

from tests.e2e.small import split_small

FORKED = """
import os, sys
import numpy as np
import serfer

plan, store = sys.argv[1:]
client, batch = serfer.Client("http://localhost:1"), np.zeros((1, 3, 34, 34), np.float32)
with serfer.open(plan, store=store) as pipeline:
    before = pipeline.run(batch)
    if not (fork := os.fork()):
        large = np.zeros((100, 3, 34, 34), np.float32)
        calls = [lambda: pipeline.run(batch), lambda: pipeline.submit(large), lambda: pipeline.predict([b""]),
                 lambda: pipeline.classify([b""]), pipeline.warm, pipeline.health, client.models]
        for call in calls:
            try:
                call()
            except serfer.SerferError as error:
                print(type(error).__name__, f"{os.getppid()}" in str(error))
        sys.exit(7)  # closes the pipeline, and frees it
    print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), (pipeline.run(batch) == before).all())
"""


@pytest.mark.killed
def test_pipeline_and_client_in_a_fork_are_refused_and_the_parent_goes_on(tmp_path):
    plan = split_small(tmp_path / "small")
    store = f"file://{tmp_path}/store"
    told = subprocess.run(
        [sys.executable, "-c", FORKED, plan, store], capture_output=True, text=True, check=False, timeout=60
    )
    assert told.stdout.split("\n") == ["UsageError True"] * 7 + ["7 True", ""], told.stderr
    assert told.stderr == ""
