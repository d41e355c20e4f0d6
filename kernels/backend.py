"""Which bodies run: the compiled library on a CPU, Triton on a GPU, or the torch references where there is neither.

Ops read the module attribute `library` on every call (one dictionary look-up), then ask `gpu_body`; nothing else
decides."""

import functools
import importlib
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor

Backend = Literal["native", "triton", "reference"]
_log = logging.getLogger(__name__)


def _load() -> Any:
    """The compiled module, or None with one logged line that says why."""
    if os.environ.get("DECODEX_CPU_KERNELS", "1") == "0":
        _log.warning("CPU kernels are off (DECODEX_CPU_KERNELS=0): reference bodies and oneDNN run instead")
        return None
    try:
        return importlib.import_module("decodex.kernels.cpu._C")
    except ImportError as error:
        _log.warning("CPU kernels are unavailable (%s): reference bodies and oneDNN run instead", error)
        return None


_native: Any = _load()
library: Any = _native  # the compiled module, or None
_forced: Backend | None = None


def cpu_library() -> Any:
    """The compiled module whose functions take raw pointers, or None when the reference bodies run."""
    return library


@functools.cache
def _triton_module(name: str) -> Any:
    """decodex.kernels.triton.<name>, or None with one logged line where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        _log.warning("Triton is not installed: the reference bodies of %s run on the GPU", name)
        return None
    return importlib.import_module(f"decodex.kernels.triton.{name}")


def gpu_body(name: str, tensor: Tensor) -> Any:
    """The Triton bodies of kernels/<name>.py, or None when this tensor's reference bodies run."""
    is_wanted = tensor.is_cuda if _forced is None else _forced == "triton"
    return _triton_module(name) if is_wanted else None


def isa() -> str:
    """The instruction set in use: "avx2", "avx512", "amx", "neon", or "reference" without the library."""
    return "reference" if library is None else str(library.isa)


@contextmanager
def set_backend(backend: Backend) -> Iterator[None]:
    """Forces the bodies inside a `with` block (for tests); layers packed before keep the body they were packed for.

    "triton" needs a GPU, or Triton's interpreter. Raises RuntimeError for "native" where there is no library."""
    global library, _forced
    if backend not in ("native", "triton", "reference"):
        raise ValueError(f'backend: expected "native", "triton" or "reference", got {backend!r}')
    if backend == "native" and _native is None:
        raise RuntimeError("the CPU library is not available on this machine")
    previous = library, _forced
    library, _forced = (_native if backend == "native" else None), backend
    try:
        yield
    finally:
        library, _forced = previous
