"""Which CPU bodies run: the compiled library, or the torch references when there is no library for this machine.

Ops read the module attribute `library` on every call (one dictionary look-up); nothing else decides."""

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

Backend = Literal["native", "reference"]
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


def cpu_library() -> Any:
    """The compiled module whose functions take raw pointers, or None when the reference bodies run."""
    return library


def isa() -> str:
    """The instruction set in use: "avx2", "avx512", "neon", or "reference" without the library."""
    return "reference" if library is None else str(library.isa)


@contextmanager
def set_backend(backend: Backend) -> Iterator[None]:
    """Forces the bodies inside a `with` block (for tests); layers packed before keep the body they were packed for.

    Raises RuntimeError for "native" where there is no library."""
    global library
    if backend not in ("native", "reference"):
        raise ValueError(f'backend: expected "native" or "reference", got {backend!r}')
    if backend == "native" and _native is None:
        raise RuntimeError("the CPU library is not available on this machine")
    previous, library = library, _native if backend == "native" else None
    try:
        yield
    finally:
        library = previous
