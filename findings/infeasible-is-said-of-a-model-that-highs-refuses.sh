#!/usr/bin/env bash
# SciPy 1.17.1's milp returns status 2, which its documentation calls "infeasible", where HiGHS refuses the model: a coefficient of 1e15 or
# more, as bytes of petabytes or nanoseconds of days are. Only the message says "Model error"; whoever goes by the status takes a programme
# that has solutions for one that has none. HiGHS 1.16.0 by highspy says that it did not take the model.
# One expects status 4 ("other"), as of other failures of the solver.
#
# Seen on 2026-11-30, least x with c x >= 2 c and x from 0 to 10:
#   SciPy    c 1e+14: status 0, x 2        c 1e+15: status 2, (HiGHS Status 2: Model error)
#   highspy  c 1e+14: kOk                  c 1e+15: kError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check scipy==1.17.1 highspy==1.16.0 numpy==2.4.6
pip freeze
python <<'EOF'
import highspy
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

seen = []
for factor in (1e14, 1e15):
    found = milp([1.0], constraints=LinearConstraint([[factor]], lb=2 * factor), bounds=Bounds(0, 10))
    highs = highspy.Highs()
    highs.silent()
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = 1, 1
    model.col_cost_, model.col_lower_, model.col_upper_ = np.array([1.0]), np.array([0.0]), np.array([10.0])
    model.row_lower_, model.row_upper_ = np.array([2 * factor]), np.array([highspy.kHighsInf])
    model.a_matrix_.start_, model.a_matrix_.index_ = np.array([0, 1]), np.array([0])
    model.a_matrix_.value_ = np.array([factor])
    seen.append((found.status, found.message, None if found.x is None else found.x[0], highs.passModel(model).name))
for factor, (status, message, x, passed) in zip((1e14, 1e15), seen):
    print(f"c {factor:g}: SciPy status {status}, {message}, x {x}; highspy {passed}")

assert seen[0][0] == 0 and abs(seen[0][2] - 2) < 1e-6 and seen[0][3] == "kOk"
assert seen[1][0] == 2 and "Model error" in seen[1][1] and seen[1][2] is None and seen[1][3] == "kError"
EOF
