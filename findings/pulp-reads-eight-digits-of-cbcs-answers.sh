#!/usr/bin/env bash
# PuLP 3.3.2 with the CBC of its wheel exchanges files with the solver, and the answer comes back with eight digits. An integer of 13 digits
# (bytes, tokens, nanoseconds) is rounded to hundreds of thousands: the value breaks its own upper bound, and PuLP calls it optimal.
# One expects the 15 digits of a double, which HiGHS 1.16.0, called by PuLP without files, returns.
#
# Seen on 2026-11-30, the largest integer up to 2199023255553:
#   CBC    Optimal 2199023300000  above its bound by 44447
#   HiGHS  Optimal 2199023255553  above its bound by 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check pulp==3.3.2 highspy==1.16.0 numpy==2.4.6
pip freeze
python <<'EOF'
import pulp

BOUND = 2**41 + 1


def largest(solver):
    problem = pulp.LpProblem("largest", pulp.LpMaximize)
    x = pulp.LpVariable("x", 0, BOUND, cat="Integer")
    problem += x
    problem.solve(solver)
    return pulp.LpStatus[problem.status], int(x.value())


read = {"CBC": largest(pulp.PULP_CBC_CMD(msg=False)), "HiGHS": largest(pulp.HiGHS(msg=False))}
for solver, (status, value) in read.items():
    print(f"{solver:5}  {status} {value}  above its bound by {value - BOUND}")

assert read == {"CBC": ("Optimal", 2199023300000), "HiGHS": ("Optimal", BOUND)}
EOF
