"""Training of heads on a target that is a hash: sequences, what the target computed on them, heads of either kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from head_fakes import CONFIG, EMBED, HEAD, NUM_LAYERS, TARGET_IDS, H, V, frequencies, state, tensors_of
from head_oracle import Eagle3, Mtp, Oracle
from torch import Tensor

from decodex.head_training import Method, head_config
from decodex.spec.train.head_module import HeadModule, new_weights
from decodex.spec.train.loop import Trainee
from decodex.spec.train.recipe import Recipe
from decodex.spec.train.states import Captured, Span

TAPS = (0, 3, 6)
TARGET_CONFIG = {
    **CONFIG,
    "num_hidden_layers": NUM_LAYERS,
    "max_position_embeddings": 128,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
}
SHAPES = ((9, 3), (5, 1), (14, 6), (4, 2))  # tokens of a sequence, and of these the prompt's


def make_spans(shapes: Sequence[tuple[int, int]] = SHAPES, seed: int = 0, temperature: float = 0.0) -> list[Span]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Span(tuple(torch.randint(0, V, (length,), generator=generator).tolist()), start, temperature)
        for length, start in shapes
    ]


def target_on(spans: Sequence[Span]) -> list[Captured]:
    """What the target computes on whole sequences."""
    found = []
    for span in spans:
        prefixes = [span.token_ids[: i + 1] for i in range(len(span.token_ids))]
        hidden = torch.stack([state(prefix) for prefix in prefixes])
        taps = [torch.stack([state(prefix, layer) for prefix in prefixes]) for layer in TAPS]
        logits = hidden @ HEAD.T
        found.append(Captured(torch.cat([*taps, hidden], dim=-1), logits.logsumexp(-1), logits.argmax(-1)))
    return found


class ExactStore:
    """As a StateStore, but nothing is rounded."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._found = target_on(spans)

    def read(self, index: int) -> Captured:
        return self._found[index]


@dataclass(frozen=True)
class ToyHead:
    """A head in training whose weights are all random (and float16's), and the same one in plain torch."""

    method: Method
    config: dict[str, Any]
    prefix: str  # of the decoder layer's names
    module: HeadModule
    weights: dict[str, Tensor]

    @property
    def output(self) -> Tensor:
        return self.weights["lm_head.weight"] if self.method == "eagle3" else HEAD[TARGET_IDS]

    def oracle(self) -> Oracle:
        if self.method == "eagle3":
            return Eagle3(self.config, self.weights, EMBED, HEAD)
        p = self.prefix
        names = (f"{p}enorm", f"{p}hnorm", f"{p}eh_proj", f"{p}shared_head.norm", p)
        more = {"names": names, "offset": 0.0, "is_hidden_first": False, "carries_normed": False}
        return Mtp(self.config, self.weights, EMBED, HEAD[TARGET_IDS], **more)

    def states(self, captured: Captured, count: int) -> Tensor:
        """Of the first `count` positions, as the oracle reads them."""
        if self.method == "eagle3":
            return captured.states[:count, :-H].reshape(count, len(TAPS), H)
        return captured.states[:count, -H:]

    def trainee(self) -> Trainee:
        name = "lm_head.weight" if self.method == "eagle3" else None
        return Trainee(self.module, self.weights, HEAD[TARGET_IDS], TARGET_IDS, name)


def make_head(method: Method, seed: int = 7) -> ToyHead:
    config = head_config(TARGET_CONFIG, method, TAPS, Recipe(draft_vocab_size=len(TARGET_IDS)))
    prefix = "midlayer." if method == "eagle3" else f"model.layers.{NUM_LAYERS}."
    shape = {**config, "num_taps": len(TAPS)}
    made = new_weights(method, shape, prefix, {}, (torch.ones(H), HEAD[TARGET_IDS]), torch.Generator())
    drawn = tensors_of({name: tuple(weight.shape) for name, weight in made.items()}, seed)
    weights = {name: (tensor + (tensor.dim() == 1)).half().float() for name, tensor in drawn.items()}
    return ToyHead(method, config, prefix, HeadModule(method, config, frequencies(CONFIG), EMBED, prefix), weights)
