"""Maps of dense networks that are in use: those of the module on the whole image, or refused by operator or guard.

The oracle is the module in float64. A map may be off by 1e-5 of the range, or by twice what the module in float32 is.
`.venv/bin/python -m tests.splitter.windows.test_forty_networks [PART OF A NAME]` prints what becomes of the networks.
"""

import copy
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import serfer
from serfer.core.errors import SerferError
from tests.splitter.windows.forty_networks import NETWORKS, network, smp
from tests.splitter.windows.test_random_maps import NOT_A_REASON, all_by_windows

EXACT = 1e-5
"""Of the range of an output."""
_MARKS = {"commit": (), "slow": pytest.mark.slow, "weekly": pytest.mark.weekly}


def outputs_of(net, image):
    with torch.inference_mode():
        values = net(torch.from_numpy(image))
    return [each.numpy() for each in (values if isinstance(values, list | tuple) else [values])]


def planned(name, directory):
    """Make the plan of a network for its image; windows that are not a multiple of the stride become the next one."""
    known, window = NETWORKS[name], NETWORKS[name].window
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return serfer.map_plan(network(name), [known.size], directory, window=window, statistics="exact")


def differences(name, directory):
    """Map an image by the plan; return of each output its error, what is allowed, and the share of other classes."""
    net, image = network(name), np.random.default_rng(3).standard_normal((1, 3, *NETWORKS[name].size), np.float32)
    truths = outputs_of(copy.deepcopy(net).double(), image.astype(np.float64))
    for made, own, truth in zip(all_by_windows(directory, image), outputs_of(net, image), truths, strict=True):
        assert made.shape == truth.shape
        span = np.ptp(truth)
        allowed = max(EXACT, 2 * np.abs(own - truth).max() / span)
        yield np.abs(made - truth).max() / span, allowed, other_classes(made, truth, allowed * span)


def other_classes(made, truth, apart):
    """Return the share of pixels with another best class, of those whose best two are so far apart."""
    if truth.shape[1] == 1:
        return 0.0
    second, best = np.sort(truth, axis=1)[:, -2:].swapaxes(0, 1)
    return float((made.argmax(1) != truth.argmax(1))[best - second > 2 * apart].mean())


@pytest.mark.exact
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [pytest.param(name, marks=_MARKS[each.often]) for name, each in NETWORKS.items()])
def test_a_network_in_use_has_the_map_of_its_module_or_is_refused_by_name(name, tmp_path):
    if NETWORKS[name].package:
        smp(tmp_path)
    said = outcome(name, tmp_path)
    if said.startswith("refused") and not NETWORKS[name].maps:
        assert "operator '" in said or "size" in said
        assert not NOT_A_REASON.search(said)
    else:
        assert said.startswith("exact")


def outcome(name, folder):
    """Return in words what becomes of a network."""
    try:
        plan = planned(name, folder / "plan")
    except SerferError as error:
        return f"refused: {error}"
    found = [*differences(name, folder / "plan")]
    wrong = any(not error <= allowed or classes for error, allowed, classes in found)
    windows = f"{len(plan.windows.first)} windows, {len(plan.windows.passes)} passes before the map"
    return f"{'WRONG' if wrong else 'exact'}: {max(each for each, *_ in found):.1e} of the range, {windows}"


if __name__ == "__main__":
    part = " ".join(sys.argv[1:])
    with tempfile.TemporaryDirectory() as packages:
        for each in NETWORKS:
            if part in each:
                with tempfile.TemporaryDirectory() as place:
                    if NETWORKS[each].package:
                        smp(Path(packages))
                    began = time.process_time()
                    said = outcome(each, Path(place))
                    print(f"{each} | {time.process_time() - began:.0f} s | {said}", flush=True)  # noqa: T201
