"""Builds a transformers model from its files and hands its weights over to packed ones."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from decodex.errors import ModelError
from decodex.kernels.linear import PackedLinear
from decodex.models.hf_attention import Experts
from decodex.models.llama import Packing
from decodex.models.row_invariant import PackedWeights, empty_parameter
from decodex.models.source import ModelFiles

__all__ = ["build_transformers_model", "find_decoder_layers", "pack_experts", "pack_modules"]

_log = logging.getLogger(__name__)


def build_transformers_model(files: ModelFiles, packing: Packing, implementation: str) -> Any:
    """The model with its weights in the dtype that is held, attention and experts set to `implementation`.

    Refuses by name what is no causal LM with attention in every layer, before weights are read."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(str(files.path), local_files_only=True)
    except Exception as error:  # unknown model_type, fields of the wrong kind
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = files.path / "config.json"
        raise ModelError(f"{files.architecture} can't be loaded from {where} ({reason})") from error
    _refuse(files, config, AutoModelForCausalLM)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(files.path),
            dtype=packing.dtype or "auto",
            attn_implementation=implementation,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # whatever a damaged file or an odd config leads to
        raise ModelError(f"{files.path}: {files.architecture} can't be loaded ({error})") from error
    network, info = loaded
    for kind in ("missing_keys", "mismatched_keys"):
        if info.get(kind):
            first = sorted(str(key) for key in info[kind])[0]
            raise ModelError(f"{files.path}: {kind.replace('_keys', '')} tensor {first} ({files.architecture})")
    if info.get("unexpected_keys"):
        names = sorted(str(key) for key in info["unexpected_keys"])
        raise ModelError(f"{files.path}: tensor {names[0]!r} has no place in {files.architecture} ({len(names)} such)")
    network.eval().requires_grad_(False)
    network.to(packing.device)
    network.config._experts_implementation = implementation
    return network


def _refuse(files: ModelFiles, config: Any, auto_model: Any) -> None:
    name = files.architecture
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name} is an encoder-decoder model; only causal language models can run")
    try:
        model_class = auto_model._model_mapping[type(config)]
    except KeyError as error:
        raise ModelError(f"{name} (model_type {config.model_type!r}) is not a causal language model") from error
    text = config.get_text_config()
    kinds = {str(kind) for kind in (getattr(text, "layer_types", None) or ())}
    recurrent = kinds & {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "rwkv", "hybrid"}
    if recurrent or getattr(model_class, "_is_stateful", False):
        raise ModelError(f"{name} keeps recurrent state beside the KV cache, which can't be paged or rolled back")


def pack_modules(network: Any, packed: PackedWeights, head: nn.Module, packing: Packing) -> None:
    """Pack every linear layer; what is left computes in fp32. The head (and a tied embedding) keeps its own dtype."""
    from transformers.pytorch_utils import Conv1D

    head_weight = getattr(head, "weight", None)
    if not isinstance(head_weight, nn.Parameter):
        raise ModelError("the model has no output layer with a weight")
    packed.adopt(head_weight, getattr(head, "bias", None), packing.head(head_weight.data, getattr(head, "bias", None)))
    for module in network.modules():
        table = module.weight if isinstance(module, nn.Embedding) else None
        if isinstance(table, nn.Parameter) and packed.find(table) is None:
            packed.adopt_table(table)
    for name, module in list(network.named_modules()):
        if isinstance(module, Conv1D):
            module = _as_linear(network, name, module)
        if isinstance(module, nn.Linear) and isinstance(module.weight, nn.Parameter) and not packed.find(module.weight):
            bias = None if module.bias is None else [module.bias.data]
            packed.adopt(module.weight, module.bias, packing.linear([module.weight.data], bias))
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.float()
    network.config.dtype = torch.float32


def _as_linear(network: Any, name: str, module: Any) -> nn.Linear:
    """Put an nn.Linear in the place of a GPT-2 Conv1D, whose weight is [K, N]."""
    linear = nn.Linear(1, 1)
    linear.weight = nn.Parameter(module.weight.data.T, requires_grad=False)
    linear.bias = module.bias
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, linear)
    return linear


def pack_experts(network: nn.Module, packing: Packing) -> dict[int, Experts]:
    """Pack the stacked weights [E, ., .] of every experts module that follows transformers' experts interface."""
    found: dict[int, Experts] = {}
    for module in network.modules():
        if not hasattr(module, "is_transposed") or not hasattr(module, "has_gate"):
            continue
        first = "gate_up_proj" if module.has_gate else "up_proj"
        found[id(module)] = Experts(_pack_stack(module, first, packing), _pack_stack(module, "down_proj", packing))
    return found


def _pack_stack(module: Any, name: str, packing: Packing) -> list[PackedLinear]:
    stack: nn.Parameter = getattr(module, name)
    biases: Tensor | None = getattr(module, f"{name}_bias", None) if module.has_bias else None
    packed = []
    for expert in range(stack.shape[0]):
        weight = stack.data[expert].T if module.is_transposed else stack.data[expert]
        bias = None if biases is None else [biases.data[expert]]
        packed.append(packing.linear([weight.contiguous()], bias))
    empty_parameter(stack)
    return packed


def find_decoder_layers(network: nn.Module, num_layers: int) -> nn.ModuleList:
    """The list of decoder layers: the outermost ModuleList of the right length."""
    for module in network.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    raise ModelError(f"no list of {num_layers} decoder layers found in {type(network).__name__}")
