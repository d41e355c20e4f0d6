"""Import this before any Triton kernel: without a CUDA device they are interpreted, on CPU tensors. Skips
the importing module where there is no Triton.

Triton's interpreter replaces the functions of its language at every call of a jitted function, also at nested ones
(1.4 ms each); here they are replaced once, for the life of this process.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class _Patched:
    """The scope of a replacement that stays."""

    def restore(self) -> None:
        pass


def _interpret() -> None:
    if "triton" in sys.modules:
        raise RuntimeError("triton: expected this module to be imported first")
    os.environ["TRITON_INTERPRET"] = "1"  # read when functions are decorated, and later
    pytest.importorskip("triton")
    import triton.language as tl
    from triton.runtime import interpreter

    replace, seen = interpreter._patch_lang, set()

    def replace_once(fn: Any) -> Any:
        languages = {id(value) for value in fn.__globals__.values() if value in (tl, tl.core)}
        if not languages <= seen:
            seen.update(languages)
            replace(fn)
        return _Patched()

    interpreter._patch_lang = replace_once
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)


if DEVICE == "cpu":
    _interpret()
