"""What the target computed on its own answers, kept on disk: hidden states, and how its next token is distributed.

A folder of shards (safetensors); a shard that exists is complete, so an interrupted capture goes on where it stopped.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from decodex.spec.train.errors import TrainingError
from decodex.spec.train.records import Record

__all__ = ["Captured", "Span", "StateStore", "capture", "checksum"]

RECORDS_PER_SHARD = 128
_LARGEST = 65504.0  # of float16


@dataclass(frozen=True)
class Captured:
    """The target on T tokens."""

    states: Tensor  # [T, S] fp32: the taps, low to high, then the hidden state after the final norm
    log_totals: Tensor  # [T] fp32: logsumexp of the logits
    top_ids: Tensor  # [T] int64: argmax of the logits


@dataclass(frozen=True)
class Span:
    """One sequence: token ids [T] and where its answer begins."""

    token_ids: tuple[int, ...]
    answer_start: int
    temperature: float

    @staticmethod
    def of(record: Record, max_length: int) -> Span | None:
        """Prompts lose their beginning, answers their end, where both are longer than `max_length`; None where too
        little of an answer is left to predict anything."""
        answer = record.response_ids[: max_length - 1]
        prompt = record.prompt_ids[-(max_length - len(answer)) :] if record.prompt_ids else ()
        if len(answer) < 3 or not prompt:
            return None
        return Span((*prompt, *answer), len(prompt), record.temperature)

    @property
    def num_rows(self) -> int:
        """Places from which a token of the answer is predicted by a head: entries answer_start - 1 ... T - 3."""
        return len(self.token_ids) - self.answer_start - 1


def capture(
    spans: Sequence[Span],
    forward: Callable[[Sequence[Span]], Sequence[Captured]],
    folder: Path,
    identity: Mapping[str, object],
    progress: Callable[[int], None] = lambda tokens: None,
) -> StateStore:
    """Run the target over all spans, shard by shard, leaving out the shards that are there.

    `forward`: several spans -> what the target computed on each; `identity`: what must be equal for the states to be
    usable (model, layers); TrainingError where the folder holds those of something else. Spans may have been added at
    the end since.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _mark(folder, spans, identity)
    for number, start in enumerate(range(0, len(spans), RECORDS_PER_SHARD)):
        path = _shard(folder, number)
        part = spans[start : start + RECORDS_PER_SHARD]
        if not path.exists():
            found = forward(part)
            for index, each in enumerate(found):
                if not bool(torch.isfinite(each.states).all()):
                    raise TrainingError(f"sequence {start + index}: the target's hidden states are not finite")
            partial = path.with_suffix(".partial")
            save_file(
                {
                    "states": torch.cat([each.states for each in found]).clamp_(-_LARGEST, _LARGEST).half(),
                    "log_totals": torch.cat([each.log_totals for each in found]),
                    "top_ids": torch.cat([each.top_ids for each in found]).to(torch.int32),
                },
                partial,
            )
            partial.replace(path)
        progress(sum(len(span.token_ids) for span in part))
    return StateStore(folder, spans)


def _mark(folder: Path, spans: Sequence[Span], identity: Mapping[str, object]) -> None:
    """Write down what the folder is for; a last shard that has to grow goes. TrainingError where it is for another."""
    path = folder / "states.json"

    def content(count: int) -> str:
        return json.dumps({**identity, "spans": count, "tokens": checksum(spans[:count])}, sort_keys=True)

    wanted = content(len(spans))
    if path.exists():
        found = path.read_text("utf-8")
        if found == wanted:
            return
        count = _count_in(found)
        if not count < len(spans) or found != content(count):
            raise TrainingError(
                f"{path}: holds states of another model, precision, other layers or other data; use another folder"
            )
        if count % RECORDS_PER_SHARD:
            _shard(folder, count // RECORDS_PER_SHARD).unlink(missing_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(wanted, encoding="utf-8")
    partial.replace(path)


def _count_in(text: str) -> int:
    """The sequences that a states.json speaks of; one that is damaged speaks of none."""
    try:
        return int(json.loads(text)["spans"])
    except (ValueError, TypeError, KeyError):
        return 0


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def checksum(spans: Sequence[Span]) -> int:
    """Of tokens and where answers begin; 32 bits."""
    total = 0
    for span in spans:
        total = zlib.crc32(torch.tensor([span.answer_start, *span.token_ids]).numpy().tobytes(), total)
    return total


class StateStore:
    """Reads the states of single spans."""

    def __init__(self, folder: Path, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._files: list[Any] = []
        self._starts: list[int] = []
        for number, first in enumerate(range(0, len(spans), RECORDS_PER_SHARD)):
            start = 0
            for span in spans[first : first + RECORDS_PER_SHARD]:
                self._starts.append(start)
                start += len(span.token_ids)
            self._files.append(_open(_shard(folder, number), start))

    def read(self, index: int) -> Captured:
        """The states of span `index`."""
        file, start = self._files[index // RECORDS_PER_SHARD], self._starts[index]
        end = start + len(self.spans[index].token_ids)
        return Captured(
            states=file.get_slice("states")[start:end].float(),
            log_totals=file.get_slice("log_totals")[start:end],
            top_ids=file.get_slice("top_ids")[start:end].to(torch.int64),
        )

    def __iter__(self) -> Iterator[Captured]:
        return (self.read(index) for index in range(len(self.spans)))


def _open(path: Path, num_tokens: int) -> Any:
    """A shard, of which as much is looked at as costs nothing; TrainingError where it doesn't hold what it should."""
    try:
        file: Any = safe_open(path, framework="pt")
        found = {name: file.get_slice(name).get_shape()[0] for name in ("states", "log_totals", "top_ids")}
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"{path}: can't be read ({error}); delete it to capture it again") from error
    if set(found.values()) != {num_tokens}:
        raise TrainingError(f"{path}: its tensors have rows {found}, not {num_tokens}; delete it to capture it again")
    return file
