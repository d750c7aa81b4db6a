"""A processor with made-up prices, on which small networks are worth splitting; no measurement changes them."""

from dataclasses import replace

from serfer.core.costs.operator_costs import shipped_profiles

_NS = {"macs": 15.0, "taps": 15.0, "read": 3.0, "written": 3.0, "weights": 0.3, "operator": 300_000.0}


def slow_profiles(times=1.0, parallel=0.5):
    """Return profiles in which all operators cost alike, so many times 15 ns a multiply-accumulate."""
    shipped = shipped_profiles()
    kinds = {
        kind: replace(
            one, parallel=parallel, coefficients_ns={name: times * _NS.get(name, 0.0) for name in one.coefficients_ns}
        )
        for kind, one in shipped.kinds.items()
    }
    return replace(shipped, run_ns=20_000.0, kinds=kinds)
