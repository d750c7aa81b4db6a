#!/usr/bin/env bash
# HiGHS, in scipy 1.17.1, compares costs with absolute tolerances of 1e-6 and 1e-7, whatever their size. With prices of instances in dollars
# a second, a plan that is 4% dearer than the best comes back as optimal, with a gap of 0.0 and mip_rel_gap 0 asked for; the same prices
# an hour give the best plan. SCIP 10 (PySCIPOpt 6.3.0) gives it for both. One expects a change of unit not to change the plan.
#
# Seen on 2026-11-30, three instances of 13, 25 and 29 queries a second at 0.0144, 0.0069 and 0.0115 $/h, for 201.6 queries a second:
#   HiGHS, $/s  status 0, gap 0.0, plan [0, 9, 0] = 0.0621 $/h
#   HiGHS, $/h  status 0, gap 0.0, plan [0, 7, 1] = 0.0598 $/h
#   SCIP, $/s   optimal, plan [0, 7, 1]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check scipy==1.17.1 pyscipopt==6.3.0 numpy==2.4.6
pip freeze
python <<'EOF'
import numpy as np
from pyscipopt import Model, quicksum
from scipy.optimize import Bounds, LinearConstraint, milp

an_hour = np.array([0.0144, 0.0069, 0.0115])
rates, wanted = [13, 25, 29], 201.6
plans = {}
for unit, prices in (("$/s", an_hour / 3600), ("$/h", an_hour)):
    enough = LinearConstraint([rates], wanted, np.inf)
    result = milp(prices, integrality=[1, 1, 1], bounds=Bounds(0, np.inf), constraints=enough, options={"mip_rel_gap": 0})
    plans[unit] = result.x.round().astype(int).tolist()
    print(f"HiGHS, {unit}  status {result.status}, gap {result.mip_gap}, plan {plans[unit]} = {an_hour @ plans[unit]:.4f} $/h")
    assert result.status == 0 and result.mip_gap == 0

model = Model()
model.hideOutput()
counts = [model.addVar(vtype="I") for _ in rates]
model.addCons(quicksum(rate * count for rate, count in zip(rates, counts, strict=True)) >= wanted)
model.setObjective(quicksum(price * count for price, count in zip(an_hour / 3600, counts, strict=True)))
model.optimize()
plans["SCIP"] = [round(model.getVal(count)) for count in counts]
print(f"SCIP, $/s   {model.getStatus()}, plan {plans['SCIP']}")

assert plans == {"$/s": [0, 9, 0], "$/h": [0, 7, 1], "SCIP": [0, 7, 1]}
EOF
