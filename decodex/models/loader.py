"""Chooses the path for a model: the lean decoder where it covers the config, else transformers' own code."""

from __future__ import annotations

import logging
import time
from typing import Literal

import torch

from decodex.errors import ModelError, RequestError
from decodex.models.interface import CausalLM
from decodex.models.llama import LlamaModel, Packing
from decodex.models.llama_config import LlamaConfig
from decodex.models.source import ModelFiles
from decodex.models.weights import WeightReader

__all__ = ["DType", "Quantization", "load_model"]

DType = Literal["auto", "bfloat16", "float16", "float32"]
Quantization = Literal["int8"] | None

_DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_log = logging.getLogger(__name__)


def load_model(
    files: ModelFiles,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    device: torch.device | str = "cpu",
    force_generic: bool = False,
) -> CausalLM:
    """Read and pack a model's weights.

    `dtype`: how weights are held ("auto" as published); activations and KV are fp32. `quantization`: "int8" for
    weight-only int8 per output channel. `force_generic`: transformers' code also where the lean decoder would do.
    Raises ModelError naming architecture, file, tensor or config field.
    """
    if dtype not in _DTYPES:
        raise RequestError("dtype", dtype, "one of " + ", ".join(_DTYPES))
    if quantization not in (None, "int8"):
        raise RequestError("quantization", quantization, "None or 'int8'")
    method = files.config.get("quantization_config")
    if method is not None:
        name = method.get("quant_method") if isinstance(method, dict) else method
        raise ModelError(f"{files.path / 'config.json'}: quantization_config {name!r} can't be read; use the original")
    started = time.perf_counter()
    packing = Packing(_DTYPES[dtype], quantization == "int8", torch.device(device))
    model: CausalLM
    if LlamaConfig.supports(files.config) and not force_generic:
        model = LlamaModel(files.name, LlamaConfig.read(files.config), WeightReader(files.shards), packing)
    else:
        from decodex.models.hf import load_transformers_model

        model = load_transformers_model(files, packing)
    seconds, mib = time.perf_counter() - started, model.weight_nbytes / 2**20
    _log.info("%s: %s, %.0f MiB of weights, loaded in %.1f s", files.name, files.architecture, mib, seconds)
    return model
