"""Results as workers and drivers leave them in a store, for tests of what reads them."""

import time
from dataclasses import replace

from serfer.core.keys import LOCAL_OWNER
from serfer.results import Results
from tests.results.stored import array_of, dense, manifest_of, new_place, put_chunks


def put_result(store, outputs, *, owner=LOCAL_OWNER, grid=(2, 2), ttl=600.0, age=0.0):
    """Write a result of maps (N, C, H, W) that was made `age` seconds ago, and return its manifest."""
    place = new_place(owner, ttl)
    arrays = []
    for number, (name, values) in enumerate(outputs.items()):
        arrays.append(array_of(name, dense(*values.shape[1:], str(values.dtype)), len(values), grid))
        put_chunks(store, place, number, arrays[-1], values)
    manifest = manifest_of(arrays, place, time.time() - age)
    long = replace(manifest, expires=time.time() + 600)
    Results(store, clock=lambda: long.created).write(manifest)
    return manifest
