"""Make `import torchvision` succeed beside a build of torch that it was not built for.

torchvision's wheel on PyPI is built for CUDA. Beside a CPU build of torch its extension library does not load, and the
import fails with "operator torchvision::nms does not exist", although no classification network needs that operator.
Importing serfer registers a finder that, when torchvision is first imported, declares the two operators that the import
looks up. A torchvision whose extension loads is left as it is. The operators on boxes remain unavailable:
torchvision.ops.nms raises its own error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_OPERATORS = ("nms", "qnms")
_LIBRARIES: list[Any] = []
"""Declarations live as long as the library object that declared them."""


class _Finder(MetaPathFinder):
    """Find torchvision as the other finders do, with a loader that prepares torch first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return torchvision's specification, None for every other module."""
        if fullname != "torchvision":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Declare the missing operators, then load the module by the loader that it has without us."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as its own loader does."""
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module by its own loader, which it keeps."""
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        _declare_missing(list(getattr(module, "__path__", ())))
        self._own.exec_module(module)


def _declare_missing(directories: list[str]) -> None:
    import torch  # noqa: PLC0415 - slow to import, and torchvision imports it itself

    if _extension_loads(directories):
        return
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch left it so
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)


def _extension_loads(directories: list[str]) -> bool:
    """Load torchvision's extension library as torchvision itself does; loading it again does nothing."""
    import torch  # noqa: PLC0415 - as above

    spec = PathFinder.find_spec("_C", directories)
    if spec is None or spec.origin is None:
        return False
    try:
        torch.ops.load_library(spec.origin)  # type: ignore[no-untyped-call]  # torch left it so
    except (ImportError, OSError):
        return False
    return True


def install() -> None:
    """Put the finder before the others, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
