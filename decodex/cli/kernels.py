"""`decodex kernels compile`: builds every Triton kernel for GPUs that this machine need not have."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["run"]

USAGE = "usage: decodex kernels compile"


def run(argv: Sequence[str]) -> int:
    """Print registers, shared memory and spills of each kernel on each target; 1 if one fails or a sampling kernel
    spills. Where no Triton is published (only Linux has it) that is said and nothing is compiled."""
    if list(argv) in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if list(argv) != ["compile"]:
        print(USAGE, file=sys.stderr)
        return 2
    os.environ.pop("TRITON_INTERPRET", None)  # read when kernels are defined
    try:
        from decodex.kernels.triton import compilation
    except ImportError as error:
        print(f"decodex kernels: Triton is not installed ({error}): nothing to compile", file=sys.stderr)
        return 1 if sys.platform == "linux" else 0
    return compilation.compile_all()
