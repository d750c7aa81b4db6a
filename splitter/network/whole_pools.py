"""Pooling whose window is the whole map, as Cellpose writes it: `avg_pool2d(x, kernel_size=x.shape[2:])`.

torch's exporter takes a window for a number, so that the program would be for one size alone; a mean is for any.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PLAIN = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False, "count_include_pad": True}
"""What torch passes on, besides the stride and the divisor, where a call chooses nothing."""


def whole_pools_as_means() -> AbstractContextManager[Any]:
    """Have poolings whose window is the whole map traced as means and maxima over rows and columns."""
    import torch  # noqa: PLC0415 - slow to import
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415 - same

    functions = torch.nn.functional

    class WholePools(TorchFunctionMode):
        def __torch_function__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - as torch declares it
            kwargs = kwargs or {}
            if called is functions.avg_pool2d and (pooled := _whole_map(*args, **kwargs)) is not None:
                return pooled.mean((-2, -1), keepdim=True)
            if called is functions.max_pool2d and (pooled := _whole_map(*args, **kwargs)) is not None:
                return pooled.amax((-2, -1), keepdim=True)
            return called(*args, **kwargs)

    return WholePools()


def _whole_map(input: torch.Tensor, kernel_size: Any, *others: Any, **named: Any) -> torch.Tensor | None:  # noqa: A002, ANN401 - torch's own names
    """Return the map if the kernel is its own height and width, as the tracer has them, and nothing else is chosen."""
    sides = tuple(kernel_size) if isinstance(kernel_size, tuple | list) else (kernel_size, kernel_size)
    same = len(sides) == len(input.shape[-2:]) and all(map(_same, sides, input.shape[-2:]))
    plain = not others and all(value is None or value == _PLAIN.get(name) for name, value in named.items())
    return input if same and plain else None


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - int or SymInt
    """Compare expressions of the image's size, not its value: that would be a condition of the program."""
    left, right = getattr(one, "node", None), getattr(other, "node", None)
    return left is not None and right is not None and left.expr == right.expr
