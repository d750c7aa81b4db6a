"""The command `serfer` for a driver behind a balancer, or an instance, which another process of ours starts.

Its last arguments, which hold passwords, may be in a variable: any user of a machine can read a process's command line;
its environment is its own user's alone.
"""

from __future__ import annotations

import json
import os
import sys

from serfer.__main__ import main
from serfer.cli.shared.service_options import ARGUMENTS, BALANCERS
from serfer.settings import leave_out

LEFT_OUT = {"serve": BALANCERS, "instance": ("model", "plan", "registry", "app", "instance_type")}
"""Keys that such a process does not read: what started it says on its line which networks it serves, and how."""

if __name__ == "__main__":
    leave_out(LEFT_OUT[sys.argv[1]])
    sys.argv += json.loads(os.environ.pop(ARGUMENTS, "[]"))
    main(check=False)  # the command that started it has, of the same environment
