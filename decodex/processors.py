"""Custom logits processors: the interface over rows, adapters for other shapes of processor, and one choice's own set.

A processor runs at every logits row, draft rows too, so it must be a pure function of the row and say so:
`pure = True`. One that does not is taken for stateful: each choice gets a copy of its own, which sees each emitted
row once and in order, and speculation is off for its request (`RequestOutput.metrics.speculation_off` says so).
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from decodex.errors import RequestError, describe_error

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
    is_tensor = isinstance(result, Tensor) and result.layout is torch.strided
    if not is_tensor or result.shape != tuple(shape) or not result.is_floating_point():
        got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        got += f" ({result.layout})" if isinstance(result, Tensor) and not is_tensor else ""
        raise ValueError(f"expected floating-point logits {tuple(shape)}, got {got}")
    logits: Tensor = result.detach().to(torch.float32)
    return logits


def run(processor: LogitsProcessor, logits: Tensor, rows: Sequence[RowView]) -> Tensor:
    """Logits [R, V] fp32 after a processor; raises whatever it raises, ValueError for a wrong shape."""
    shape, device = logits.shape, logits.device  # a processor may reshape logits in place
    result = processor.apply(logits, rows)
    after = _checked(logits if result is None else result, shape)
    if after.device != device:
        raise ValueError(f"expected logits on {device}, got them on {after.device}")
    return after


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

    def __init__(self, engine: Sequence[LogitsProcessor], own: Sequence[Any], *, is_copied: bool = True) -> None:
        """`is_copied`: whether stateful ones are (a caller's own loop keeps its processors itself)."""
        self.engine = [None if is_pure(p) else _copied(p, f"engine logits_processors[{i}]")
                       for i, p in enumerate(engine)]  # fmt: skip
        self.own: list[LogitsProcessor] = []
        self.stateful = [f"engine logits_processors[{i}]" for i, p in enumerate(engine) if not is_pure(p)]
        for index, processor in enumerate(own):
            name = f"logits_processors[{index}]"
            try:
                bound = bind(processor)
                is_stateful = not is_pure(bound)
            except Exception as error:  # of a property `pure`
                hint = f"looking at it raised {describe_error(error)}"
                raise RequestError(name, type(processor).__name__, "a logits processor", hint) from error
            if is_stateful:
                self.stateful.append(name)
                bound = _copied(bound, name) if is_copied else bound
            self.own.append(bound)


def _copied(processor: LogitsProcessor, name: str) -> LogitsProcessor:
    try:
        if isinstance(processor, FunctionProcessor) and isinstance(processor.function, types.FunctionType):
            return FunctionProcessor(_copied_function(processor.function), processor.pure)
        return copy.deepcopy(processor)
    except Exception as error:
        hint = f"copying it raised {describe_error(error)}"
        expected = "a processor that can be copied, or pure = True"
        raise RequestError(name, type(processor).__name__, expected, hint) from error


def _copied_function(function: types.FunctionType) -> types.FunctionType:
    """A function with copies of what it closes over and of its defaults: `copy.deepcopy` would share them. Modules,
    classes, functions and networks are shared; so are global variables."""

    def copied(value: Any) -> Any:
        is_shared = isinstance(value, (types.ModuleType, types.FunctionType, type, torch.nn.Module))
        return value if is_shared else copy.deepcopy(value)

    def copied_cell(cell: types.CellType) -> types.CellType:
        try:
            return types.CellType(copied(cell.cell_contents))
        except ValueError:  # empty
            return cell

    cells = None if function.__closure__ is None else tuple(map(copied_cell, function.__closure__))
    defaults = None if function.__defaults__ is None else tuple(map(copied, function.__defaults__))
    twin = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells)
    twin.__kwdefaults__ = None if function.__kwdefaults__ is None else copied(function.__kwdefaults__)
    return twin
