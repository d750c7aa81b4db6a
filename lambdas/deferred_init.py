"""Packages of which a cold start needs a few modules, and not all that their `__init__` imports."""

import importlib.util
import sys
from typing import Any


def defer_init(name: str) -> None:
    """Let modules of a package be imported without its `__init__`, which runs when a name of the package is requested.

    Does nothing for a package that has been imported or is not installed.
    """
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    module, loader = importlib.util.module_from_spec(spec), spec.loader

    def request(attribute: str) -> Any:  # noqa: ANN401 - whatever the package has
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        del module.__dict__["__getattr__"]
        loader.exec_module(module)
        return getattr(module, attribute)

    module.__dict__["__getattr__"] = request
    sys.modules[name] = module
