"""decodex: sampling, speculative decoding and structured output that compose.

>>> from decodex import LLM, SamplingParams
>>> LLM("smollm2-135m").chat([{"role": "user", "content": "Hi"}], SamplingParams(temperature=0))

Names are imported on first use, so that parameters, errors and `--help` don't wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decodex.async_llm import AsyncLLM
    from decodex.config import EngineConfig
    from decodex.errors import DecodexError, EngineError, ModelError, QueueFullError, RequestError
    from decodex.llm import LLM
    from decodex.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
    from decodex.params import SamplingParams
    from decodex.structured_outputs import StructuredOutputsParams
    from decodex.version import __version__

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "DecodexError",
    "EngineConfig",
    "EngineError",
    "Logprob",
    "ModelError",
    "QueueFullError",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_HOME = {
    "AsyncLLM": "async_llm",
    "EngineConfig": "config",
    "LLM": "llm",
    "SamplingParams": "params",
    "StructuredOutputsParams": "structured_outputs",
    "__version__": "version",
    **dict.fromkeys(("CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput"), "outputs"),
    **dict.fromkeys(("DecodexError", "EngineError", "ModelError", "QueueFullError", "RequestError"), "errors"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'decodex' has no attribute {name!r}")
    return getattr(importlib.import_module(f"decodex.{_HOME[name]}"), name)
