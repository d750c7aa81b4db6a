"""What is said of a result that is kept: an answer of the Open Inference Protocol, whose outputs have links for data.

    {"model_name", "model_version", "parameters": {"result": ID, "result_location", "result_expires"},
     "outputs": [{"name", "datatype", "shape", "parameters": {"result_bytes", "result_zarr", perhaps "result_link"}}]}

The protocol's extensions for shared memory say where an output's data lies in the same way, in place of "data".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request

from serfer.api.requests import owner_of
from serfer.core.inference_protocol import BY_DTYPE
from serfer.core.keys import LOCAL_OWNER
from serfer.core.zarr import ChunkedArray
from serfer.results import ResultManifest, Results, npy_bytes
from serfer.storage.store import Store

PREFIX: Final = "/v2/results"
MODEL_VERSION: Final = "1"
LINKS_LAST_S: Final = 3600
"""How long links to chunks hold at most."""


def place_of(kept: ResultManifest) -> str:
    return f"{PREFIX}/{kept.id}"


def owner_id(request: Request) -> str:
    """Return what the owner of a request's result is called in its store: no name of a key is written there."""
    owner = owner_of(request)
    return sha256(f"serfer result owner {owner}".encode()).hexdigest() if owner else LOCAL_OWNER


@dataclass(frozen=True)
class KeptResults:
    """The results that a service keeps in a store; a response has at most `most_bytes`, None where it has no bound."""

    store: Store
    most_bytes: int | None = None

    @property
    def results(self) -> Results:
        return Results(self.store)

    def document(self, kept: ResultManifest, names: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """Return what is said of a result: of its outputs in `names`, in that order, by the second name, or of all."""
        place = place_of(kept)
        said = {"result": kept.id, "result_location": place, "result_expires": math.floor(kept.expires)}
        wanted = [(output, alias) for name, alias in names if (output := kept.output(name))]
        outputs = [
            {
                "name": alias,
                "datatype": BY_DTYPE[output.dtype],
                "shape": [*output.shape],
                "parameters": self._places(kept, output, place),
            }
            for output, alias in wanted or [(output, output.name) for output in kept.outputs]
        ]
        return {"model_name": kept.model, "model_version": MODEL_VERSION, "parameters": said, "outputs": outputs}

    def sends(self, length: int) -> bool:
        return self.most_bytes is None or length <= self.most_bytes

    def link(self, kept: ResultManifest, key: str, now: float) -> str | None:
        """Return a link to a chunk that needs no API key, None where its store has none; `now` is since the epoch."""
        return self.store.link(key, max(1, min(LINKS_LAST_S, math.floor(kept.expires - now))))

    def _places(self, kept: ResultManifest, output: ChunkedArray, place: str) -> dict[str, int | str]:
        size = npy_bytes(output)
        places: dict[str, int | str] = {
            "result_bytes": size,
            "result_zarr": f"{place}/zarr/{kept.outputs.index(output)}",
        }
        if self.sends(size):
            places["result_link"] = f"{place}/outputs/{quote(output.name, safe='')}"
        return places
