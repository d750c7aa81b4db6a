"""Pooling whose window is the whole map, as Cellpose writes it: `avg_pool2d(x, kernel_size=x.shape[2:])`.

torch's exporter takes a window for a number, so that the program would be for one size alone; a mean is for any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import torch


@contextmanager
def whole_pools_as_means() -> Iterator[None]:
    """Have poolings whose window is the whole map traced as means and maxima over rows and columns."""
    import torch  # noqa: PLC0415 - slow to import

    functions = torch.nn.functional
    average, largest = functions.avg_pool2d, functions.max_pool2d

    def avg_pool2d(input: torch.Tensor, kernel_size: Any, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: A002, ANN401 - torch's own names
        if _is_whole(input, kernel_size, args, kwargs):
            return input.mean((-2, -1), keepdim=True)
        return average(input, kernel_size, *args, **kwargs)

    def max_pool2d(input: torch.Tensor, kernel_size: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002, ANN401 - same
        if _is_whole(input, kernel_size, args, kwargs):
            return input.amax((-2, -1), keepdim=True)
        return largest(input, kernel_size, *args, **kwargs)

    with (
        mock.patch.object(functions, "avg_pool2d", avg_pool2d),
        mock.patch.object(functions, "max_pool2d", max_pool2d),
    ):
        yield


def _is_whole(x: torch.Tensor, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:  # noqa: ANN401 - int, SymInt or several
    """Return whether a kernel is the map's own height and width, as the tracer has them, and nothing else is chosen."""
    sides = tuple(kernel) if isinstance(kernel, tuple | list) else (kernel, kernel)
    same = len(sides) == len(x.shape[-2:]) and all(map(_same, sides, x.shape[-2:]))
    return same and not args and not kwargs


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - int or SymInt
    """Compare expressions of the image's size, not its value: that would be a condition of the program."""
    left, right = getattr(one, "node", None), getattr(other, "node", None)
    return left is not None and right is not None and left.expr == right.expr
