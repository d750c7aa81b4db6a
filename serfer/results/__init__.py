"""Results: answers that stay in a store until their lifetime has passed, as groups of zarr arrays."""

from serfer.results.manifest import ResultManifest, planned_manifest
from serfer.results.results import Results, StoredResult, npy_bytes

__all__ = ["ResultManifest", "Results", "StoredResult", "npy_bytes", "planned_manifest"]
