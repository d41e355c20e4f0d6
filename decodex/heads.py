"""Loads draft heads and draft models beside a target: finds their files and checks that they fit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from decodex.errors import ModelError
from decodex.kernels.attention import RowContexts
from decodex.kernels.backend import cpu_library
from decodex.kv_cache import KVCache, LayerKV
from decodex.models.interface import CausalLM, ForwardBatch
from decodex.models.llama_config import LlamaConfig, rope_frequencies
from decodex.models.loader import load_model
from decodex.models.source import read_json, resolve_model
from decodex.spec.decoder_layer import Entries
from decodex.spec.draft_model import DraftForward, DraftModel
from decodex.spec.eagle import EagleHead
from decodex.spec.eagle3 import Eagle3Head, LayerIds
from decodex.spec.head import Head
from decodex.spec.head_proposer import HeadProposer
from decodex.spec.head_weights import HeadError, HeadWeights
from decodex.spec.mtp import MtpHead, mtp_layout
from decodex.spec.target import StepTensors, TargetParts
from decodex.speculative_config import HeadQuantization
from decodex.tokenizer import Tokenizer

__all__ = ["SharedParts", "draft_forward", "head_agreement", "load_drafter", "target_parts"]

_log = logging.getLogger(__name__)
_HUB_PATTERNS = ["config.json", "*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin"]
_CHECK_TEXT = "The quick brown fox jumps over the lazy dog. One, two, three, four, five, six, seven, eight, nine, ten."
_CHECK_BLOCK = 16


@runtime_checkable
class SharedParts(Protocol):
    """A model that lets heads use its embedding and its output layer."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T] int64 -> [T, H] fp32."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """[T, H] fp32 after the final norm -> [T, V] fp32."""
        ...


def load_drafter(
    method: str,
    name: str,
    model: CausalLM,
    tokenizer: Tokenizer,
    device: torch.device,
    *,
    layer_ids: LayerIds = "auto",
    carries_normed: bool | None = None,
    quantization: HeadQuantization = "auto",
) -> HeadProposer:
    """The proposer of a method with weights.

    `method`: draft_model, eagle, eagle3 or mtp; `name`: folder or Hugging Face id (mtp: the target's own checkpoint, or
    one with its module alone). `layer_ids`, `carries_normed`: see `Eagle3Head`, `MtpHead`; `quantization`: see
    SpeculativeConfig. Raises ModelError naming file, tensor or config field.
    """
    if method == "draft_model":
        return HeadProposer(method, _load_draft_model(name, model, tokenizer, device))
    folder = _head_folder(name)
    config = read_json(folder / "config.json")
    target = target_parts(model, device)
    trained_for = config.get("target_weights_digest")  # of heads of `train-head`
    origin = "" if trained_for in (None, model.weights_digest) else f"trained for other weights than {model.name}'s"
    try:
        weights = HeadWeights.open(folder, target.device, kind=_kind(quantization, target.device))
        head = _read_head(method, config, weights, target, layer_ids, carries_normed)
    except HeadError as error:
        told = str(error)
        place = "" if str(folder) in told else f"{folder}: "
        raise ModelError(f"{place}{told}{' (' + origin + ')' if origin else ''}") from error
    agreed, asked = head_agreement(head, model, tokenizer.encode(_CHECK_TEXT), device)
    _log.info("%s: %s head, top token as the target's at %d of %d places of a test text", name, method, agreed, asked)
    if agreed * 20 < asked:
        _log.warning("%s hardly ever agrees with %s: %s", name, model.name, origin or "is the head trained enough?")
    return HeadProposer(method, head)


def _read_head(
    method: str,
    config: Mapping[str, Any],
    weights: HeadWeights,
    target: TargetParts,
    layer_ids: LayerIds,
    carries_normed: bool | None,
) -> Head:
    if method == "mtp":
        layout = mtp_layout(weights, target.num_layers)
        return MtpHead(config, weights.below(layout.prefix), target, layout, carries_normed)
    if method == "eagle":
        return EagleHead(config, weights, target)
    return Eagle3Head(config, weights, target, layer_ids)


def _kind(quantization: HeadQuantization, device: torch.device) -> Literal["auto", "int8"]:
    """How layers are packed: a draft on a CPU waits for its weights, and is only a guess."""
    is_faster = device.type == "cpu" and cpu_library() is not None
    return "int8" if quantization == "int8" or (quantization == "auto" and is_faster) else "auto"


def target_parts(model: CausalLM, device: torch.device) -> TargetParts:
    """What heads share with a model; ModelError if it does not share."""
    if not isinstance(model, SharedParts):
        raise ModelError(f"{model.name}: draft heads can't use the embedding and output layer of this architecture")
    return TargetParts(
        embed=model.embed,
        head=model.head,
        rope_frequencies=_rope_frequencies,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        num_layers=model.num_layers,
        max_position=model.max_position,
        device=device,
    )


def _rope_frequencies(config: Mapping[str, Any]) -> Tensor:
    """From a head's config.json, which may lack what only whole models need."""
    whole = {"vocab_size": 1, "num_hidden_layers": 1, "max_position_embeddings": 1, **config}
    shape = LlamaConfig.read({**whole, "architectures": ["LlamaForCausalLM"]})
    if shape.rope["rope_type"] not in ("default", "linear", "llama3", "dynamic"):
        raise HeadError(f"config.json: rope_type {shape.rope['rope_type']!r} is not supported in heads")
    width = int(shape.head_dim * float(shape.rope.get("partial_rotary_factor", 1.0)))
    return rope_frequencies(replace(shape, head_dim=width))


def _head_folder(name: str) -> Path:
    """A local folder, or the files of a head on the Hugging Face hub."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.count("/") != 1 or folder.exists():
        raise ModelError(f"{name}: expected the folder of a head or a Hugging Face id (org/name)")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_PATTERNS))
    except Exception as error:  # the client raises many kinds: no network, no such repository, gated, disk
        first = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {first[0] if first else 'no reason given'}"
        raise ModelError(f"head {name!r} is no local folder and can't be had from the hub ({reason})") from error


def _load_draft_model(name: str, model: CausalLM, tokenizer: Tokenizer, device: torch.device) -> DraftModel:
    files = resolve_model(name)
    own = Tokenizer.load(files)
    if own.vocab_size != tokenizer.vocab_size or own.special_ids != tokenizer.special_ids:
        raise ModelError(f"draft model {name}: {_vocabulary(own)}, the target's has {_vocabulary(tokenizer)}")
    for token in range(own.vocab_size):
        if own.id_to_token(token) != tokenizer.id_to_token(token):
            texts = f"{own.id_to_token(token)!r}, the target's is {tokenizer.id_to_token(token)!r}"
            raise ModelError(f"draft model {name}: another vocabulary, token {token} is {texts}")
    drafter = load_model(files, device=device)
    if drafter.vocab_size < tokenizer.vocab_size:
        raise ModelError(f"draft model {name}: {drafter.vocab_size} logits for {tokenizer.vocab_size} tokens")
    layers = [(layer.num_kv_heads, layer.k_dim, layer.v_dim) for layer in drafter.kv_spec]
    return DraftModel(draft_forward(drafter), layers, drafter.max_position)


def _vocabulary(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.vocab_size} tokens ({len(tokenizer.special_ids)} special)"


def draft_forward(model: CausalLM) -> DraftForward:
    """A model's forward over the proposer's own layers of the KV cache."""

    def forward(token_ids: Tensor, entries: Entries, wanted: Tensor, step: StepTensors) -> Tensor:
        kv = KVCache((), step.kv_k[0].shape[0] // step.block_size, step.block_size, token_ids.device)
        kv.k, kv.v = list(step.kv_k), list(step.kv_v)
        batch = ForwardBatch(token_ids, entries.positions, entries.slots, entries.rows, wanted)
        return model.forward(batch, kv).logits

    return forward


@torch.inference_mode()
def head_agreement(head: Head, model: CausalLM, token_ids: list[int], device: torch.device) -> tuple[int, int]:
    """At how many places of a text the head's first draft is the target's top token, and of how many."""
    size = len(token_ids)
    num_blocks = -(-size // _CHECK_BLOCK)
    spec = [*model.kv_spec, *(LayerKV(*layer) for layer in head.kv_layers)]
    kv = KVCache(spec, num_blocks, _CHECK_BLOCK, device)
    tables = torch.arange(num_blocks, dtype=torch.int32, device=device)[None]
    places = torch.arange(size, device=device)

    def contexts(num_rows: int) -> RowContexts:
        return RowContexts(
            block_tables=tables,
            row_slot=torch.zeros(num_rows, dtype=torch.int32, device=device),
            ctx_lens=places[:num_rows].to(torch.int32) + 1,
            anc_cu=torch.zeros(num_rows + 1, dtype=torch.int32, device=device),
            anc_slots=torch.empty(0, dtype=torch.int64, device=device),
            block_size=_CHECK_BLOCK,
        )

    ids = torch.tensor(token_ids, device=device)
    batch = ForwardBatch(ids, places.to(torch.int32), places, contexts(size), places)
    out = model.forward(batch, kv, head.taps, head.needs_hidden)
    first = len(model.kv_spec)
    step = StepTensors(out.hidden, out.taps, tables, kv.k[first:], kv.v[first:], _CHECK_BLOCK, None)
    asked = size - 1
    entries = Entries(places[:asked].to(torch.int32), places[:asked], contexts(asked), asked)
    _, logits = head.forward(ids[1:], head.inputs(step, places[:asked]), entries, step)
    drafted = logits.argmax(dim=1)
    if head.token_map is not None:
        drafted = head.token_map[drafted]
    return int((drafted == out.logits[1:].argmax(dim=1)).sum()), asked
