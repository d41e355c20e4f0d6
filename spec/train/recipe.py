"""The recipe of a training: every number that is chosen, with its default."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from decodex.spec.train.errors import TrainingError

__all__ = ["Recipe"]


def _option(default: Any, help: str, least: float, most: float = float("inf")) -> Any:
    return field(default=default, metadata={"help": help, "least": least, "most": most})


@dataclass(frozen=True)
class Recipe:
    """How a head is trained. TrainingError names a field that is out of range."""

    draft_vocab_size: int = _option(4096, "tokens that the head can draft: the most frequent ones of the answers", 1)
    intermediate_size: int = _option(0, "width of the head's MLP; 0: the target's", 0)
    epochs: float = _option(4.0, "passes over the data", 0.01)
    batch_tokens: int = _option(768, "tokens in a batch, prompts and padding included", 1)
    max_length: int = _option(1024, "longest sequence; longer prompts lose their beginning", 8)
    depths: int = _option(4, "draft depths that are trained (training-time test)", 1, 16)
    first_depths: int = _option(1, "depths trained at first", 1, 16)
    deepen_at: float = _option(0.5, "share of the training after which all depths are trained", 0.0, 1.0)
    depth_decay: float = _option(0.8, "weight of a depth's loss in that of the depth before", 0.0, 1.0)
    learning_rate: float = _option(1e-3, "of AdamW, at its highest", 1e-9, 1.0)
    warm_up: float = _option(0.02, "share of the training in which the rate rises", 0.0, 1.0)
    final_rate: float = _option(0.05, "share of the rate that is left in the end (cosine)", 0.0, 1.0)
    weight_decay: float = _option(0.0, "of AdamW", 0.0)
    clip: float = _option(0.5, "largest norm of a gradient", 1e-9)
    overlap_loss: float = _option(0.0, "share of 1 - sum min(p, q) in the loss, the rest is cross-entropy", 0.0, 1.0)
    held_out: int = _option(48, "sequences kept for evaluation where no file of them is given", 1)
    eval_every: int = _option(200_000, "answer tokens between evaluations and checkpoints", 1)
    seed: int = _option(0, "of shuffling and initialization", 0, 2**63 - 1)

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least, most = getattr(self, each.name), each.metadata["least"], each.metadata["most"]
            if isinstance(value, bool) or not isinstance(value, int if each.type == "int" else (int, float)):
                raise TrainingError(f"{each.name}: got {value!r}, expected a number of type {each.type}")
            if not least <= value <= most:
                raise TrainingError(f"{each.name}: got {value!r}, expected {least} to {most}")
        if self.first_depths > self.depths:
            raise TrainingError(f"first_depths: got {self.first_depths}, expected at most depths ({self.depths})")
