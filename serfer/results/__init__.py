"""Results: answers that stay in a store until their lifetime has passed, read by parts."""

from __future__ import annotations

from serfer.results.manifest import ResultManifest, ResultOutput, ResultPart, planned_manifest
from serfer.results.results import Results, npy_bytes
from serfer.results.stored import StoredResult

__all__ = ["ResultManifest", "ResultOutput", "ResultPart", "Results", "StoredResult", "npy_bytes", "planned_manifest"]
