import subprocess
import sys

RAISE = """
import resource
from serfer.local.descriptors import raise_limit
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_is_raised_to_the_most_that_the_process_may_have():
    command = ["prlimit", "--nofile=64:256", sys.executable, "-c", RAISE]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["256"] * 3
