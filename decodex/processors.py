"""Custom logits processors: the interface over rows, adapters for other shapes of processor, and one choice's own set.

A processor runs at every logits row, draft rows too, so it must be a pure function of the row and say so:
`pure = True`. One that does not is taken for stateful: each choice gets a copy of its own, which sees each emitted
row once and in order, and speculation is off for its request (`RequestOutput.metrics.speculation_off` says so).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from decodex.errors import RequestError

__all__ = ["FunctionProcessor", "LogitsProcessor", "ProcessorSet", "RowView", "TransformersProcessor", "bind"]


@dataclass(frozen=True)
class RowView:
    """What a processor may know of a row: all of it, and nothing of batch mates."""

    slot: int  # stable while the sequence runs, and reused later
    position: int  # absolute position of the token that the row predicts
    token_ids: tuple[int, ...]  # committed prompt and output
    num_prompt_tokens: int
    ancestors: tuple[int, ...]  # draft tokens between the committed ones and the row

    @property
    def context(self) -> list[int]:
        """Every token before the predicted one."""
        return [*self.token_ids, *self.ancestors]


@runtime_checkable
class LogitsProcessor(Protocol):
    """The batch interface. A class that has `pure = True` declares that `apply` is a pure function of each row."""

    def apply(self, logits: Tensor, rows: Sequence[RowView]) -> Tensor | None:
        """New logits [R, V] for `logits` [R, V] fp32, which may be changed in place (then None is fine)."""
        ...


class FunctionProcessor:
    """`function(token_ids, logits) -> logits`, a row at a time: all tokens so far as a list, logits [V] fp32."""

    def __init__(self, function: Callable[[list[int], Tensor], Tensor | None], pure: bool = False) -> None:
        self.function = function
        self.pure = pure

    def apply(self, logits: Tensor, rows: Sequence[RowView]) -> Tensor:
        """See LogitsProcessor."""
        out = []
        for row, view in zip(logits, rows, strict=True):
            result = self.function(view.context, row)
            out.append(_checked(row if result is None else result, row.shape))
        return torch.stack(out)


class TransformersProcessor:
    """A transformers `LogitsProcessor`, called with input_ids [1, n] int64 and scores [1, V] fp32 for each row."""

    def __init__(self, processor: Callable[[Tensor, Tensor], Tensor], pure: bool = False) -> None:
        self.processor = processor
        self.pure = pure

    def apply(self, logits: Tensor, rows: Sequence[RowView]) -> Tensor:
        """See LogitsProcessor."""
        out = []
        for row, view in zip(logits, rows, strict=True):
            input_ids = torch.tensor([view.context], device=logits.device)
            out.append(_checked(self.processor(input_ids, row[None]), (1, len(row)))[0])
        return torch.stack(out)


def _checked(result: Any, shape: Sequence[int]) -> Tensor:
    """A processor's result as fp32 of `shape`; ValueError for anything else."""
    if not isinstance(result, Tensor) or result.shape != tuple(shape) or not result.is_floating_point():
        got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"expected floating-point logits {tuple(shape)}, got {got}")
    return result.float()


def run(processor: LogitsProcessor, logits: Tensor, rows: Sequence[RowView]) -> Tensor:
    """Logits [R, V] fp32 after a processor; raises whatever it raises, ValueError for a wrong shape."""
    shape = logits.shape  # a processor may reshape logits in place
    result = processor.apply(logits, rows)
    return _checked(logits if result is None else result, shape)


def bind(processor: Any) -> LogitsProcessor:
    """A processor of any of the three shapes as the batch interface: an object with `apply`, one of transformers'
    (known by its class), or a function of (token_ids, logits). An attribute `pure` is taken over."""
    if isinstance(processor, LogitsProcessor):
        return processor
    pure = getattr(processor, "pure", False) is True
    names = {f"{c.__module__}.{c.__name__}" for c in type(processor).__mro__}
    if any(name.startswith("transformers.") and name.endswith("LogitsProcessor") for name in names):
        return TransformersProcessor(processor, pure)
    if type(processor).__name__ == "LogitsProcessorList":
        return TransformersProcessor(processor, pure)
    return FunctionProcessor(processor, pure)


def is_pure(processor: LogitsProcessor) -> bool:
    """Whether a processor declares that it is a pure function of the row."""
    return getattr(processor, "pure", False) is True


class ProcessorSet:
    """The processors of one choice, the engine's first: shared ones where they are pure, copies of stateful ones.

    It lives with the sequence, not with the slot: a preempted sequence finds its processors as it left them. Raises
    RequestError for a stateful processor that can't be copied.
    """

    def __init__(self, engine: Sequence[LogitsProcessor], own: Sequence[Any], num_choices: int = 1) -> None:
        self.shared = [p if is_pure(p) else None for p in engine]  # run for all rows at once
        self.engine = [None if is_pure(p) else _copied(p, f"engine logits_processors[{i}]", num_choices)
                       for i, p in enumerate(engine)]  # fmt: skip
        self.own: list[LogitsProcessor] = []
        self.stateful = [f"engine logits_processors[{i}]" for i, p in enumerate(engine) if not is_pure(p)]
        for index, processor in enumerate(own):
            bound, name = bind(processor), f"logits_processors[{index}]"
            if not is_pure(bound):
                self.stateful.append(name)
                bound = _copied(bound, name, num_choices)
            self.own.append(bound)


def _copied(processor: LogitsProcessor, name: str, num_choices: int) -> LogitsProcessor:
    inner = getattr(processor, "function", None)
    if num_choices > 1 and isinstance(processor, FunctionProcessor) and getattr(inner, "__closure__", None):
        hint = "declare pure=True (FunctionProcessor) or pass an object"
        raise RequestError(name, inner, "something that each of the n choices can have a copy of", hint)
    try:
        return copy.deepcopy(processor)
    except Exception as error:
        hint = f"copying it raised {type(error).__name__}: {error}"
        raise RequestError(name, processor, "a processor that can be copied, or pure = True", hint) from error
