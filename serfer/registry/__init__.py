"""The registry: applications' records and the artefacts of their variants, in a directory or a bucket of S3.

    applications/APP.json       the record of an application (serfer/core/variants), replaced by compare-and-set
    registrations/ID.json       what the registration of a network has done so far, and who works on it
    artefacts, by SHA-256       the files of plan directories, and their manifests; shared between variants

Nothing in it expires: `collect_garbage` deletes the artefacts that no record refers to.
"""

from serfer.registry.garbage import collect_garbage
from serfer.registry.opening import check_apart, open_registry
from serfer.registry.registry import Latest, Registry

__all__ = ["Latest", "Registry", "check_apart", "collect_garbage", "open_registry"]
