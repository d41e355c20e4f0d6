"""Draft heads for tests: checkpoints in every public layout, a target that is a hash, and runs over a paged KV."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from head_oracle import Eagle1, Eagle3, Mtp, Oracle
from safetensors.torch import save_file
from torch import Tensor

from decodex.spec.draft import Draft
from decodex.spec.eagle import EagleHead
from decodex.spec.eagle3 import Eagle3Head
from decodex.spec.head import Head
from decodex.spec.head_proposer import HeadProposer
from decodex.spec.head_weights import HeadWeights
from decodex.spec.mtp import MtpHead, mtp_layout
from decodex.spec.proposer import ProposerOptions, ProposerView, TreeShape
from decodex.spec.target import Choices, StepTensors, TargetParts

V, H, V_D, NUM_LAYERS, BLOCK = 24, 16, 10, 8, 4
CONFIG = {
    "hidden_size": H,
    "intermediate_size": 20,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "vocab_size": V,
}
EMBED, HEAD = torch.randn(2, V, H, generator=torch.Generator().manual_seed(1)).unbind()


def frequencies(config: dict) -> Tensor:
    width = int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))
    return config["rope_theta"] ** (-torch.arange(0, width, 2) / width)


TARGET = TargetParts(
    embed=lambda ids: EMBED[ids],
    head=lambda hidden: hidden @ HEAD.T,
    rope_frequencies=frequencies,
    hidden_size=H,
    vocab_size=V,
    num_layers=NUM_LAYERS,
    max_position=512,
    device=torch.device("cpu"),
)


def state(prefix: Sequence[int], layer: int = -1) -> Tensor:
    """What the target makes of a prefix: anything, as long as it depends on all of it."""
    return _state((layer, *prefix))


@cache
def _state(key: tuple[int, ...]) -> Tensor:
    return torch.randn(H, generator=torch.Generator().manual_seed(hash(key) & 0xFFFFFFFF))


def states_of(token_ids: Sequence[int], taps: tuple[int, ...]) -> Tensor:
    """States of positions 0..n-2: [n-1, H], or [n-1, taps, H]."""
    prefixes = [token_ids[: i + 1] for i in range(len(token_ids) - 1)]
    if not taps:
        return torch.stack([state(p) for p in prefixes])
    return torch.stack([torch.stack([state(p, layer) for layer in taps]) for p in prefixes])


class TopTokens:
    """A chooser that takes the likeliest tokens and remembers the logits it saw."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self.num_calls = 0

    def choose(self, logits, views, paths, width, token_map) -> Choices:
        self.num_calls += 1
        for row, (view, path) in enumerate(zip(views, paths, strict=True)):
            assert (view, path) not in self.seen
            self.seen[view, path] = logits[row].clone()
        scores, ids = logits.softmax(-1).topk(width)
        return Choices((ids if token_map is None else token_map[ids]).tolist(), scores.tolist())


@dataclass
class Run:
    """Sequences in a paged KV whose next tokens are random: drafts are accepted or not by chance."""

    proposer: HeadProposer
    seed: int = 0
    vocab: int = V
    num_blocks: int = 64
    sequences: list[list[int]] = field(default_factory=list)
    choose: Callable[..., Choices] | None = None  # instead of the likeliest tokens

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        slots = self.num_blocks * BLOCK
        nan = float("nan")
        self.kv_k = [torch.full((slots, h, k), nan) for h, k, _ in self.proposer.kv_layers]
        self.kv_v = [torch.full((slots, h, v), nan) for h, _, v in self.proposer.kv_layers]
        lengths = (9, 1, 14)
        self.sequences = [self.rng.integers(0, self.vocab, n).tolist() for n in lengths]
        blocks = self.rng.permutation(self.num_blocks)[: 3 * 16].reshape(3, 16)
        self.block_tables = torch.from_numpy(blocks.astype(np.int32))
        self.drafts: list[Draft | None] = [None] * 3
        self.options = [ProposerOptions()] * 3

    def step(self, ranges: list[tuple[int, list[list[int]]]], max_depths: list[int], max_nodes: int = 32) -> TopTokens:
        """One target step: for each sequence the first position and the prefixes of its rows (None: junk)."""
        taps, chooser = self.proposer.taps, TopTokens()
        if self.choose is not None:
            chooser.choose = self.choose
        prefixes: list[list[int]] = [[0]]  # a row of nobody
        views = []
        for index, (start, rows) in enumerate(ranges):
            keep = [len(prefixes) + at for at, prefix in enumerate(rows) if prefix]
            prefixes += rows
            views.append(
                ProposerView(
                    key=index,
                    slot=2 - index,
                    token_ids=self.sequences[index],
                    num_prompt_tokens=1,
                    max_depth=max_depths[index],
                    max_nodes=max_nodes,
                    options=self.options[index],
                    start=start,
                    rows=keep,
                )
            )
        self.proposer.begin(
            StepTensors(
                hidden=torch.stack([state(p) for p in prefixes]) if self.proposer.needs_hidden else None,
                taps={layer: torch.stack([state(p, layer) for p in prefixes]) for layer in taps},
                block_tables=self.block_tables,
                kv_k=self.kv_k,
                kv_v=self.kv_v,
                block_size=BLOCK,
                chooser=chooser,
            )
        )
        self.drafts = self.proposer.propose(views)
        return chooser

    def prefill(self, depth: int) -> TopTokens:
        """In two chunks; a token is sampled after the second one."""
        halves = [len(tokens) // 2 for tokens in self.sequences]
        first = [(0, [tokens[: i + 1] for i in range(h)]) for tokens, h in zip(self.sequences, halves)]
        self.step(first, [0] * 3)
        assert self.drafts == [None] * 3
        rest = [(h, [tokens[: i + 1] for i in range(h, len(tokens))]) for tokens, h in zip(self.sequences, halves)]
        for tokens in self.sequences:
            tokens.append(int(self.rng.integers(0, self.vocab)))
        return self.step(rest, [depth] * 3)

    def decode(self, depth: int) -> TopTokens:
        """Accept some path of each draft, then one more token."""
        ranges = []
        for tokens, draft in zip(self.sequences, self.drafts, strict=True):
            start, node, accepted = len(tokens) - 1, -1, []
            while draft is not None and self.rng.random() < 0.7:
                children = [child for child, parent in enumerate(draft.parents) if parent == node]
                if not children:
                    break
                node = int(self.rng.choice(children))
                accepted.append(node)
            rows: list[list[int]] = [tokens[:]] + [[] for _ in range(len(draft or ()))]
            for node in accepted:
                tokens.append(draft.token_ids[node])
                rows[1 + node] = tokens[:]
            tokens.append(int(self.rng.integers(0, self.vocab)))
            ranges.append((start, rows))
        return self.step(ranges, [depth] * 3)


SHAPES = {
    "chain": None,
    "static": TreeShape(widths=(3, 2, 1), max_nodes=12),
    "grown": TreeShape(num_children=3, num_expanded=2, max_nodes=9),
}


def tensors_of(shapes: dict[str, tuple[int, ...]], seed: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5 for name, shape in shapes.items()}


def layer_shapes(prefix: str, in_features: int = H, q_heads: int = 4, width: int = H) -> dict[str, tuple[int, ...]]:
    dim, inner = CONFIG["head_dim"], CONFIG["intermediate_size"]
    return {
        f"{prefix}self_attn.q_proj.weight": (q_heads * dim, in_features),
        f"{prefix}self_attn.k_proj.weight": (2 * dim, in_features),
        f"{prefix}self_attn.v_proj.weight": (2 * dim, in_features),
        f"{prefix}self_attn.o_proj.weight": (width, 4 * dim),
        f"{prefix}mlp.gate_proj.weight": (inner, width),
        f"{prefix}mlp.up_proj.weight": (inner, width),
        f"{prefix}mlp.down_proj.weight": (width, inner),
        f"{prefix}post_attention_layernorm.weight": (width,),
    }


def write(folder: Path, config: dict, tensors: dict[str, Tensor], as_bin: bool = False) -> HeadWeights:
    (folder / "config.json").write_text(json.dumps(config))
    if as_bin:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return HeadWeights.open(folder)


TARGET_IDS = torch.tensor([1, 2, 5, 6, 9, 13, 17, 18, 20, 23])


def eagle3_tensors(
    prefix: str, draft_vocab: bool = True, width: int = H, **extra: tuple[int, ...]
) -> dict[str, Tensor]:
    shapes = {
        "fc.weight": (width, 3 * H),
        **layer_shapes(prefix, 2 * width, width=width),
        f"{prefix}input_layernorm.weight": (width,),
        f"{prefix}hidden_norm.weight": (width,),
        "norm.weight": (width,),
        "lm_head.weight": (V_D if draft_vocab else V, width),
        **extra,
    }
    tensors = tensors_of(shapes)
    if draft_vocab:
        tensors["d2t"] = TARGET_IDS - torch.arange(V_D)
        tensors["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill_(0, TARGET_IDS, True)
    return tensors


def eagle3_nested() -> tuple[dict, dict[str, Tensor]]:
    config = {**CONFIG, "draft_vocab_size": V_D, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 6]}}
    return config, eagle3_tensors("midlayer.")


def eagle3_full() -> tuple[dict, dict[str, Tensor]]:
    """Vocabulary, embedding and default taps: the target's vocabulary with the head's own matrices."""
    return dict(CONFIG), eagle3_tensors("layers.0.", draft_vocab=False, **{"embed_tokens.weight": (V, H)})


def eagle3_narrow() -> tuple[dict, dict[str, Tensor]]:
    """Narrower than the target."""
    config = {**CONFIG, "hidden_size": 12, "target_hidden_size": H, "draft_vocab_size": V_D}
    return config, eagle3_tensors("midlayer.", width=12, **{"embed_tokens.weight": (V, 12)})


def eagle3_targets_head() -> tuple[dict, dict[str, Tensor]]:
    config, tensors = eagle3_full()
    del tensors["lm_head.weight"], tensors["embed_tokens.weight"]
    config["eagle_config"] = {"norm_before_fc": True, "norm_output": True}
    return config, {**tensors, **tensors_of({"input_norm.weight": (3 * H,)})}


def eagle3_speculators() -> tuple[dict, dict[str, Tensor]]:
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": V_D,
        "target_hidden_size": None,
        "norm_before_residual": True,
        "fc_norm": True,
        "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 7],
        "transformer_layer_config": {
            **CONFIG,
            "layer_types": ["sliding_attention"],
            "sliding_window": 5,
            "max_position_embeddings": 512,
        },
    }
    norms = {f"fc_norm.{i}.weight": (H,) for i in range(3)}
    return config, eagle3_tensors("layers.0.", **norms)


def flat(config: dict) -> dict:
    nested = config.get("transformer_layer_config", {})
    return {**nested, **config, **(config.get("eagle_config") or {})}


@dataclass(frozen=True)
class Layout:
    """A checkpoint in one of the public layouts, what loads it, and what it should propose."""

    config: dict
    tensors: dict[str, Tensor]
    read: Callable[[dict, HeadWeights], Head]
    oracle: Oracle
    is_bin: bool = False

    def proposer(self, folder: Path) -> HeadProposer:
        """Through files."""
        return HeadProposer("head", self.read(self.config, write(folder, self.config, self.tensors, self.is_bin)))


def eagle3(make: Callable[[], tuple[dict, dict[str, Tensor]]], is_bin: bool = False) -> Layout:
    config, tensors = make()
    oracle = Eagle3(flat(config), tensors, EMBED, HEAD)
    return Layout(config, tensors, lambda config, weights: Eagle3Head(config, weights, TARGET), oracle, is_bin)


def eagle1(num_layers: int, is_bin: bool) -> Layout:
    """In half precision, with a bias and an embedding of its own, as .bin; or without."""
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (H, 2 * H)}
    for index in range(num_layers):
        shapes |= layer_shapes(f"layers.{index}.")
        shapes |= {f"layers.{index}.input_layernorm.weight": (H,)} if index else {}
    if is_bin:
        shapes |= {"fc.bias": (H,), "embed_tokens.weight": (V, H)}
    tensors = tensors_of(shapes)
    if is_bin:
        tensors = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    config = {**CONFIG, "num_hidden_layers": num_layers}
    oracle = Eagle1(config, tensors, EMBED, HEAD)
    return Layout(config, tensors, lambda config, weights: EagleHead(config, weights, TARGET), oracle, is_bin)


def mtp(name: str, carries_normed: bool | None) -> Layout:
    """Beside tensors of the target, which are not the module's."""
    embed_norm, hidden_norm, projection, final_norm, prefix, own_way = {
        "deepseek": ("enorm", "hnorm", "eh_proj", "shared_head.norm", f"model.layers.{NUM_LAYERS}.", False),
        "qwen3_next": ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm", "mtp.layers.0.", True),
        "mimo": ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm", "model.mtp_layers.0.", True),
    }[name]
    is_qwen = name == "qwen3_next"
    outer = "mtp." if is_qwen else prefix
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (V, H),
        "model.layers.0.mlp.up_proj.weight": (3, H),
        **{f"{outer}{n}.weight": (H,) for n in (embed_norm, hidden_norm, final_norm)},
        f"{outer}{projection}.weight": (H, 2 * H),
        **layer_shapes(prefix, q_heads=8 if is_qwen else 4),
        f"{prefix}input_layernorm.weight": (H,),
    }
    if is_qwen:
        shapes |= {f"{prefix}self_attn.{n}_norm.weight": (CONFIG["head_dim"],) for n in "qk"}
    if name == "mimo":
        shapes |= {f"{prefix}self_attn.{n}_proj.bias": (24 if n == "q" else 12,) for n in "qkv"}
    if name == "deepseek":
        shapes |= {f"{prefix}embed_tokens.weight": (V, H), f"{prefix}shared_head.head.weight": (V, H)}
    config = {**CONFIG, "num_hidden_layers": NUM_LAYERS, **({"partial_rotary_factor": 1 / 3} if is_qwen else {})}
    tensors = tensors_of(shapes)
    oracle = Mtp(
        config,
        tensors,
        tensors.get(f"{prefix}embed_tokens.weight", EMBED),
        tensors.get(f"{prefix}shared_head.head.weight", HEAD),
        names=(f"{outer}{embed_norm}", f"{outer}{hidden_norm}", f"{outer}{projection}", f"{outer}{final_norm}", prefix),
        offset=1.0 if is_qwen else 0.0,
        is_hidden_first=name == "mimo",
        carries_normed=own_way if carries_normed is None else carries_normed,
    )

    def read(config: dict, weights: HeadWeights) -> MtpHead:
        layout = mtp_layout(weights, NUM_LAYERS)
        return MtpHead(config, weights.below(layout.prefix), TARGET, layout, carries_normed)

    return Layout(config, tensors, read, oracle)


LAYOUTS = {
    "eagle3": eagle3(eagle3_nested),
    "eagle3-own-vocabulary": eagle3(eagle3_full, is_bin=True),
    "eagle3-narrow": eagle3(eagle3_narrow),
    "eagle3-targets-head": eagle3(eagle3_targets_head),
    "eagle3-speculators": eagle3(eagle3_speculators),
    "eagle": eagle1(1, is_bin=False),
    "eagle-two-layers": eagle1(2, is_bin=True),
    "mtp-deepseek": mtp("deepseek", None),
    "mtp-deepseek-normed": mtp("deepseek", True),
    "mtp-qwen3-next": mtp("qwen3_next", None),
    "mtp-mimo": mtp("mimo", None),
    "mtp-mimo-raw": mtp("mimo", False),
}
