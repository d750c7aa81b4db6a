"""Cases on several grids or the like: at a commit each case is on one of them, and every week on each."""

from itertools import product

import pytest


def one_each(name, options, *axes):
    """Parametrise a test with `name` and every combination of axes, (names, values): the options take turns."""
    names = [name for axis, _ in axes for name in ([axis] if isinstance(axis, str) else axis)]
    cases = []
    for case in product(*(enumerate(values) for _, values in axes)):
        flat = []
        for (axis, _), (_, value) in zip(axes, case, strict=True):
            flat += [value] if isinstance(axis, str) else value
        turn = sum(number for number, _ in case) % len(options)
        cases += [
            pytest.param(option, *flat, marks=() if number == turn else pytest.mark.weekly)
            for number, option in enumerate(options)
        ]
    return pytest.mark.parametrize((name, *names), cases)
