"""What torch's exporter assumes of an image's size: the path that a module's Python takes at its example's size.

`if height % 14: pad` is decided once, while a module is exported; the program holds for the sizes that decide it alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from serfer.core.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from serfer.splitter.network.external_weights import ExternalWeightsModel

Size = tuple[int, int]
CHECKED_STEP = 64
"""By how many pixels images of a check differ: a multiple of most networks' strides."""
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MOST_CHECKED = 2048 * 2048
"""Pixels of an image that a check may compute whole."""
_AXES = ("height", "width")
_PLAIN = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False, "count_include_pad": True}
"""What torch passes on, besides the stride and the divisor, where a call chooses nothing."""


@dataclass(frozen=True)
class SizeGuards:
    """Conditions on an image's height and width, each a torch (sympy) expression of these `symbols`."""

    symbols: tuple[Any, Any] = (None, None)
    conditions: tuple[Any, ...] = ()

    @classmethod
    def of(cls, program: ExportedProgram) -> SizeGuards:
        import sympy  # noqa: PLC0415 - slow to import, and torch's

        values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
        image = next(value for value in reversed(values) if hasattr(value, "fake_mode"))
        environment = image.fake_mode.shape_env
        symbols: list[Any] = []
        conditions: list[Any] = []
        for axis, extent in zip(_AXES, image.shape[2:], strict=True):
            is_number = isinstance(extent, int)  # the module uses it as such
            symbols.append(sympy.Symbol(axis) if is_number else extent.node._expr)  # noqa: SLF001 - and `expr` may be
            conditions.append(sympy.Eq(symbols[-1], extent if is_number else extent.node.expr))  # the other side's
            if (known := environment.var_to_range.get(symbols[-1])) is not None:
                conditions += [sympy.Ge(symbols[-1], known.lower), sympy.Le(symbols[-1], known.upper)]
        asserts = [guard for several in environment.deferred_runtime_asserts.values() for guard in several]
        conditions += [guard.expr for guard in (*environment.guards, *asserts)]
        parts = (part for guard in conditions for part in sympy.And.make_args(guard))
        return cls((symbols[0], symbols[1]), tuple(part for part in parts if part.free_symbols <= {*symbols}))

    def broken(self, size: Size) -> str | None:
        """Return the first condition that an image's size does not meet, in words of Python; None if it meets all."""
        import sympy  # noqa: PLC0415 - as above

        given = dict(zip(self.symbols, map(sympy.Integer, size), strict=True))
        return next((self._describe_condition(guard) for guard in self.conditions if not guard.xreplace(given)), None)

    def unproven(self, sides: Sequence[NDArray[Any]]) -> str | None:
        """Return a condition that is not shown to be met by all images of these heights and widths, None for none.

        It is shown by its bounds or, where it is of one side, by computing it at all lengths.
        """
        import torch  # noqa: PLC0415 - slow to import
        from torch.utils._sympy.interp import sympy_interp  # noqa: PLC0415 - same
        from torch.utils._sympy.reference import TensorReferenceAnalysis  # noqa: PLC0415 - same
        from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy  # noqa: PLC0415 - same

        class Analysis(TensorReferenceAnalysis):
            mod: Any = staticmethod(torch.remainder)  # torch leaves them out for signs and large numbers
            python_mod, int_truediv = mod, staticmethod(torch.true_divide)

        lengths = dict(zip(self.symbols, map(torch.from_numpy, sides), strict=True))
        ranges = {symbol: ValueRanges(int(side.min()), int(side.max())) for symbol, side in lengths.items()}
        for guard in self.conditions:
            with suppress(Exception):  # torch raises many kinds for what it does not compute
                met = bound_sympy(guard, ranges)
                always = met.is_singleton() and met.lower
                if always or (len(guard.free_symbols) == 1 and sympy_interp(Analysis, lengths, guard).all()):
                    continue
            return self._describe_condition(guard)
        return None

    def _describe_condition(self, condition: Any) -> str:  # noqa: ANN401 - sympy has no types
        from torch.utils._sympy.printers import PythonPrinter  # noqa: PLC0415 - how torch prints guards

        names = {symbol: symbol.func(axis) for symbol, axis in zip(self.symbols, _AXES, strict=True)}
        return str(PythonPrinter().doprint(condition.xreplace(names)))


@dataclass(frozen=True)
class SizedExport:
    """A module exported for images of any size that meets the `guards`."""

    onnx: ExternalWeightsModel
    guards: SizeGuards


@dataclass
class SizedExports:
    """The programs of a module, one for each path that its Python takes by the image's size; made when first needed."""

    export: Callable[[Size], SizedExport]
    made: list[tuple[Size, SizedExport]] = field(default_factory=list)

    def of(self, size: Size) -> SizedExport:
        if fitting := next((export for _, export in self.made if not export.guards.broken(size)), None):
            return fitting
        try:
            made = self.export(size)
        except ModelError as error:
            raise ModelError(f"{error}{self._beside(size)}") from error
        if broken := made.guards.broken(size):
            raise ModelError(
                f"the network cannot be exported for images of {size[0]} x {size[1]} pixels: it needs {broken}"
            )
        self.made.append((size, made))
        return made

    def _beside(self, size: Size) -> str:
        for (height, width), export in self.made:
            if broken := export.guards.broken(size):
                return (
                    f" (at {size[0]} x {size[1]} pixels; its Python looks at the image's size, and at {height} x "
                    f"{width} it goes another way, by {broken})"
                )
        return ""


def checked_sizes(small: Size, size: Size) -> Iterator[Size]:
    """Yield `small`, and larger sizes up to `size`, the smallest first, by multiples of CHECKED_STEP."""
    rows, cols = (_checked_lengths(*sides) for sides in zip(small, size, strict=True))
    pairs = sorted(product(rows, cols), key=lambda pair: (pair[0] * pair[1], pair))
    yield pairs[0]
    yield from (pair for pair in pairs[1:] if pair[0] * pair[1] <= _MOST_CHECKED)


def _checked_lengths(first: int, last: int) -> list[int]:
    return sorted({first, last, *(first + CHECKED_STEP * steps for steps in _STEPS)} & {*range(first, last + 1)})


def mean_pools() -> AbstractContextManager[Any]:
    """Have poolings whose window is the whole map, as Cellpose writes them, traced as means and maxima over both axes.

    torch's exporter takes a window for a number, so that the program would be for one size alone; a mean is for any.
    """
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
