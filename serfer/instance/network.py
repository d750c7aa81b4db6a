"""A whole network on ONNX Runtime: on a GPU where there is one, else on the processors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.sessions import keep_padding, run_within
from serfer.core.errors import InputError, ModelError, UnavailableError, UsageError
from serfer.core.plan import Plan
from serfer.core.variants import CUDA, PRECISIONS, instruction_sets_in
from serfer.drivers.instance.open_inference import check_classifies
from serfer.plan_directory import check_artefacts, load_plan
from serfer.system import processor_description, processors


def converter() -> tuple[Callable[[Path], Any], Callable[..., Any]]:
    """Return how an ONNX file is read and converted; what that imports takes 50 MB, which belongs to no network."""
    import onnx  # noqa: PLC0415 - only this needs it
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 - same

    return onnx.load, convert_float_to_float16


def half_precision(path: Path) -> bytes:
    """Return the fp16 form of an ONNX file, with its weights; raises ModelError where it has none."""
    load, convert = converter()
    logging.getLogger("onnxruntime.transformers.float16").setLevel(logging.ERROR)  # of every weight that is rounded
    try:
        converted = convert(load(path), keep_io_types=True)
        data: bytes = converted.SerializeToString()
    except Exception as error:  # whatever the converter meets
        line = str(error).partition("\n")[0]
        raise ModelError(f"--precision fp16: this network cannot be converted, use fp32: {line[:200]}") from error
    return data


Array = NDArray[np.float32]
DEVICES: Final = ("auto", "cpu", "cuda")
_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_INSTALL = "install onnxruntime-gpu in place of onnxruntime, and NVIDIA's driver (docs/how-to/instance.md)"


@dataclass(frozen=True)
class Hardware:
    """The hardware of a network: a device, numbers of a precision, `threads` of the processors (None: all of them).

    "auto" is "cuda" where this ONNX Runtime can use a GPU, else "cpu". Threads that `spin` wait busily for a while
    after a batch, so that the next one starts sooner; they take the processors of other networks. Raises UsageError for
    another word.
    """

    device: str = "auto"
    precision: str = "fp32"
    threads: int | None = None
    spin: bool = True

    def __post_init__(self) -> None:
        for option, word, known in (("--device", self.device, DEVICES), ("--precision", self.precision, PRECISIONS)):
            if word not in known:
                raise UsageError(f"{option} is {', '.join(known[:-1])} or {known[-1]}, not {word[:40]!r}")


class Network:
    """Computes batches of at most `max_batch` images; larger ones in parts. One call at a time keeps its device busy.

    One that takes longer than LONGEST_RUN_S ends with TimeoutError.

    A GPU's libraries search for their fastest kernels again for each shape that they meet, so there a batch is padded
    with zeros to one of few sizes.
    """

    def __init__(self, session: Any, device: str, precision: str, max_batch: int) -> None:  # noqa: ANN401 - ONNX Runtime's
        self.device = device
        self.precision = precision
        self.max_batch = max_batch
        self._session = session
        self._input = session.get_inputs()[0].name
        self.pads = device == "cuda"

    @property
    def sizes(self) -> list[int]:
        """The batches worth measuring: 1, 2, 4, ... and the largest; on a GPU, those to which others are padded."""
        return padded_sizes(self.max_batch) if self.pads else doubled_sizes(self.max_batch)

    def run(self, batch: Array) -> Array:
        parts = [self._part(batch[at : at + self.max_batch]) for at in range(0, len(batch), self.max_batch)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _part(self, batch: Array) -> Array:
        import onnxruntime as ort  # noqa: PLC0415 - it is loaded by now

        count = len(batch)
        if self.pads and (more := next(size for size in self.sizes if size >= count) - count):
            batch = np.concatenate([batch, np.zeros((more, *batch.shape[1:]), np.float32)])
        logits: Array = run_within(ort, self._session, {self._input: np.ascontiguousarray(batch)})[0]
        return logits[:count]


def doubled_sizes(largest: int) -> list[int]:
    return [*(1 << power for power in range((largest - 1).bit_length())), largest]


def padded_sizes(largest: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, ... and `largest`: no batch is padded by more than a third of what it becomes."""
    doubled = doubled_sizes(largest)
    return sorted({*doubled, *(size * 3 // 2 for size in doubled if size > 1 and size * 3 // 2 < largest)})


def load_whole(directory: Path) -> Plan:
    """Return a plan that classifies, whose directory is whole and unaltered; raises PlanError."""
    plan = load_plan(directory)
    check_classifies(plan)
    check_artefacts(plan, directory)
    return plan


def open_network(plan: Plan, directory: Path, hardware: Hardware, max_batch: int) -> Network:
    """Load the whole network of a plan directory.

    Raises UnavailableError where there is no such device, ModelError for a network that has no fp16 form, or a plan
    that has none in 8 bits, InputError where ONNX Runtime cannot run it.
    """
    device = prepared_device(hardware.device)
    session = _session(_model(plan, directory, hardware.precision), device, hardware)
    if device == "cuda" and session.get_providers()[0] != _CUDA:  # it falls back without an error
        if hardware.device == "cuda":
            raise UnavailableError(f"--device cuda: ONNX Runtime could not load CUDA's libraries: {_INSTALL}")
        device = "cpu"
    return Network(session, device, hardware.precision, max_batch)


def _model(plan: Plan, directory: Path, precision: str) -> str | bytes:
    path = directory / plan.unsplit.path
    if precision == "fp16":
        return half_precision(path)
    if precision == "fp32":
        return str(path)
    if not plan.quantised:
        raise ModelError(
            "--precision int8: this plan has no network in 8 bits: serfer app register makes it, or use fp32"
        )
    return str(directory / plan.quantised[0].path)


def instruction_sets(device: str) -> tuple[str, ...]:
    """Return the instruction sets that 8-bit answers on a device depend on; empty where the kernel does not tell."""
    if device == "cuda":
        return (CUDA,)
    return instruction_sets_in(processor_description())


def prepared_device(chosen: str) -> str:
    """Return "cuda" with CUDA's libraries loaded, or "cpu"; raises UnavailableError for a GPU that cannot be used."""
    import onnxruntime as ort  # noqa: PLC0415 - it takes a while to load

    device = _device(chosen)
    if device == "cuda":
        ort.preload_dlls()  # finds CUDA and cuDNN where pip has installed them
    return device


def _device(chosen: str) -> str:
    import onnxruntime as ort  # noqa: PLC0415 - it takes a while to load

    has_cuda = _CUDA in ort.get_available_providers()
    if chosen == "cuda" and not has_cuda:
        raise UnavailableError(f"--device cuda: this ONNX Runtime ({ort.__version__}) is without CUDA: {_INSTALL}")
    return "cuda" if has_cuda and chosen != "cpu" else "cpu"


def _session(model: str | bytes, device: str, hardware: Hardware) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    import onnxruntime as ort  # noqa: PLC0415 - it takes a while to load

    options = ort.SessionOptions()
    options.intra_op_num_threads = hardware.threads or processors()
    options.inter_op_num_threads = 1
    keep_padding(options)
    if not hardware.spin:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if device == "cuda":
        options.log_severity_level = 3
    try:
        return ort.InferenceSession(model, options, providers=_providers(device))
    except Exception as error:  # its errors have no base of their own
        line = str(error).partition("\n")[0]
        raise InputError(f"ONNX Runtime cannot run the plan's whole network on {device}: {line[:200]}") from error


def _providers(device: str) -> list[str | tuple[str, Mapping[str, str]]]:
    """Return ONNX Runtime's providers; without TensorFloat-32, which is too coarse for rule 1."""
    if device == "cpu":
        return [_CPU]
    return [(_CUDA, {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}), _CPU]
