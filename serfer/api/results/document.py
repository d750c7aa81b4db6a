"""What is said of a result that is kept: an answer of the Open Inference Protocol, whose outputs have links for data.

    {"model_name", "model_version", "parameters": {"result": ID, "result_location", "result_expires"},
     "outputs": [{"name", "datatype", "shape", "parameters": {"result_bytes", "result_link" and, or, "result_parts"}}]}

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

from serfer.api.http.tensors import DATATYPES
from serfer.api.requests import owner_of
from serfer.api.results.links import Grant, LinkSigner
from serfer.core.checksum import checksum
from serfer.core.geometry import Rect
from serfer.core.keys import LOCAL_OWNER
from serfer.core.plan import Shape
from serfer.results import ResultManifest, ResultOutput, ResultPart, Results
from serfer.results.manifest import cell_bytes
from serfer.results.results import npy_bytes
from storage.store import Store

PREFIX: Final = "/v2/results"
MODEL_VERSION: Final = "1"
LINKS_LAST_S: Final = 3600
"""How long links to parts hold at most."""


def place_of(kept: ResultManifest) -> str:
    """Return the path of a result."""
    return f"{PREFIX}/{kept.id}"


def owner_id(request: Request) -> str:
    """Return what the owner of a request's result is called in its store: no name of a key is written there."""
    owner = owner_of(request)
    return sha256(f"serfer result owner {owner}".encode()).hexdigest() if owner else LOCAL_OWNER


@dataclass(frozen=True)
class KeptResults:
    """The results that a service keeps in a store, and how their outputs can be had.

    A response has at most `most_bytes`, None where it has no bound; links are signed where there is a signer.
    """

    store: Store
    signer: LinkSigner | None = None
    most_bytes: int | None = None

    @property
    def results(self) -> Results:
        """The results."""
        return Results(self.store)

    def document(self, kept: ResultManifest, names: Sequence[str] = ()) -> dict[str, Any]:
        """Return what is said of a result, of its outputs called `names`, in that order, or of all."""
        place = place_of(kept)
        said = {"result": kept.id, "result_location": place, "result_expires": math.floor(kept.expires)}
        wanted = [output for name in names if (output := kept.output(name))] or kept.outputs
        outputs = [{**_tensor(kept, output), "parameters": self._places(kept, output, place)} for output in wanted]
        return {"model_name": kept.model, "model_version": MODEL_VERSION, "parameters": said, "outputs": outputs}

    def listed(self, kept: ResultManifest, output: ResultOutput, now: float) -> dict[str, Any] | None:
        """Return the parts of an output with links to them, None where its store has no links.

        `now` is in seconds since the epoch.
        """
        lifetime_s = max(1, min(LINKS_LAST_S, math.floor(kept.expires - now)))
        urls = [self.store.link(kept.place.key(part.tile), lifetime_s) for part in output.parts]
        if None in urls:
            return None
        parts = [_part(kept, output, part, url) for part, url in zip(output.parts, urls, strict=True)]
        layout = output.shape.of(output.shape.whole, kept.images)
        return {**_tensor(kept, output), "layout": layout, "expires": math.floor(now) + lifetime_s, "parts": parts}

    def _places(self, kept: ResultManifest, output: ResultOutput, place: str) -> dict[str, int | str]:
        """Return the parameters of an output: its file's bytes and link, and the link to the list of its parts."""
        size, name = npy_bytes(kept, output), quote(output.name, safe="")
        places: dict[str, int | str] = {"result_bytes": size}
        if self.most_bytes is None or size <= self.most_bytes:
            places["result_link"] = f"{place}/outputs/{name}{self._query(kept, output)}"
        if self.store.link(kept.place.key(0), 1) is not None:
            places["result_parts"] = f"{place}/parts/{name}"
        return places

    def _query(self, kept: ResultManifest, output: ResultOutput) -> str:
        if self.signer is None:
            return ""
        return f"?{self.signer.query(Grant(kept.owner, kept.id, output.name, math.floor(kept.expires)))}"


def _tensor(kept: ResultManifest, output: ResultOutput) -> dict[str, Any]:
    shape = [*output.array_shape(kept.images)]
    return {"name": output.name, "datatype": DATATYPES[output.dtype], "shape": shape}


def _part(kept: ResultManifest, output: ResultOutput, part: ResultPart, url: str | None) -> dict[str, Any]:
    key = kept.place.key(part.tile)
    return {
        "url": url,
        "offset": part.start,
        "bytes": cell_bytes(output, part, kept.images),
        "seed": checksum(b"", key, part.cell),
        "start": _start(output.shape, part.rect),
        "shape": [*output.shape.of(part.rect, kept.images)],
    }


def _start(shape: Shape, rect: Rect) -> list[int]:
    """Return the first index of a part in its output's layout."""
    return [place.start or 0 for place in shape.slices(rect)]
