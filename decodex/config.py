"""EngineConfig: what an engine is built with; `resolve()` turns every "auto" into a value and logs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from decodex.checks import Processors
from decodex.definition import check_bool, check_int, check_number, definition, option, run_checks
from decodex.errors import RequestError
from decodex.kv_cache import LayerKV
from decodex.speculative_config import AUTO, METHODS, EngineSpeculation, read_config

__all__ = ["EngineConfig", "ResolvedConfig", "resolve"]

logger = logging.getLogger(__name__)

DTYPES = ("auto", "bfloat16", "float16", "float32")
AUTO_KV_SHARE = 0.25  # of the memory that is free once the weights are loaded
AUTO_MAX_NUM_SEQS = 64
AUTO_MAX_NUM_BATCHED_TOKENS = 512
AUTO_MAX_MODEL_LEN = 131_072
SHORTHANDS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}


@definition
class EngineConfig:
    """The options of an engine. Raises `RequestError` naming the field."""

    model: str = option(default="smollm2-135m", help="demo model name, Hugging Face id, local folder or .gguf file")
    device: str = option(default="auto", help="where the model runs: auto is cuda if there is one, else cpu")
    dtype: str = option(default="auto", help="precision of the weights; auto keeps the checkpoint's", choices=DTYPES)
    quantization: str | None = option(default=None, help="int8: weight-only, per output channel", choices=("int8",))
    max_model_len: int | None = option(
        default=None, help="longest prompt plus answer, in tokens; default: the model's context"
    )
    max_num_seqs: int | None = option(default=None, help=f"most sequences in one step; default {AUTO_MAX_NUM_SEQS}")
    max_num_batched_tokens: int | None = option(
        default=None,
        help=f"token budget of one step, prefill chunks included; default {AUTO_MAX_NUM_BATCHED_TOKENS}",
    )
    max_queued_requests: int = option(default=4096, help="most requests that wait; one more is refused")
    kv_cache_gib: float | None = option(
        default=None, help="size of the KV pool; default: a quarter of the free memory, or what fits all"
    )
    block_size: int = option(default=16, help="tokens in a KV block")
    enable_prefix_caching: bool = option(default=True, help="reuse the KV blocks of equal prompt beginnings")
    speculative_config: Any = option(
        default=AUTO,
        help="guess tokens ahead for requests that don't ask for something else: docs/speculation.md's fields as a "
        "mapping (JSON on the command line); auto: by the head that comes with the model, if one does; null: only "
        "where a request asks for it; false refuses it to requests too",
        metavar="JSON",
        check=EngineSpeculation(),
    )
    spec_method: str | None = option(default=None, help="method of speculative_config", choices=METHODS)
    spec_model: str | None = option(default=None, help="model of speculative_config")
    spec_tokens: int | None = option(default=None, help="num_speculative_tokens of speculative_config")
    check_outputs: bool = option(
        default=True, help="validate each constrained output again, independently, before it is reported finished"
    )
    logits_processors: Any = option(
        default=None, help="custom logits processors for every request, in order", cli=False, check=Processors()
    )
    seed: int | None = option(
        default=None, help="seed of requests that bring none; drawn from the operating system when absent"
    )

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise RequestError("model", self.model, "a model name, a Hugging Face id or a path")
        if self.dtype not in DTYPES:
            raise RequestError("dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        if self.quantization not in (None, "int8"):
            raise RequestError("quantization", self.quantization, "None or 'int8'")
        if self.max_model_len is not None:
            check_int("max_model_len", self.max_model_len, 2)
        if self.max_num_seqs is not None:
            check_int("max_num_seqs", self.max_num_seqs, 1, 4096)
        if self.max_num_batched_tokens is not None:
            check_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        check_int("max_queued_requests", self.max_queued_requests, 1)
        if self.kv_cache_gib is not None:
            check_number("kv_cache_gib", self.kv_cache_gib, 0.0, open_low=True)
        check_int("block_size", self.block_size, 1, 1024)
        check_bool("enable_prefix_caching", self.enable_prefix_caching)
        check_bool("check_outputs", self.check_outputs)
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**53 - 1)
        run_checks(self)
        self._fold_shorthands()

    def _fold_shorthands(self) -> None:
        """spec_method, spec_model and spec_tokens are another spelling of speculative_config's fields."""
        given = {key: getattr(self, name) for name, key in SHORTHANDS.items() if getattr(self, name) is not None}
        if not given:
            return
        if self.speculative_config not in (None, AUTO):
            name = next(name for name in SHORTHANDS if getattr(self, name) is not None)
            raise RequestError(name, getattr(self, name), "to be absent beside speculative_config")
        object.__setattr__(self, "speculative_config", read_config("speculative_config", given))


@dataclass(frozen=True)
class ResolvedConfig:
    """An EngineConfig with every "auto" decided for one loaded model."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queued_requests: int
    num_blocks: int
    block_size: int
    enable_prefix_caching: bool
    check_outputs: bool
    seed: int | None

    @property
    def max_blocks_per_seq(self) -> int:
        """Blocks of a sequence of max_model_len tokens, rounded up."""
        return -(-self.max_model_len // self.block_size)


def resolve_device(name: str) -> torch.device:
    """The torch device of `auto`, `cpu`, `cuda` or `cuda:N`; raises RequestError where there is none such."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise RequestError("device", name, "auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise RequestError("device", name, "auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RequestError("device", name, "a device of this machine", "no CUDA device is visible: use device='cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RequestError("device", name, f"a device below cuda:{torch.cuda.device_count()}")
    return device


def resolve(
    config: EngineConfig, max_position: int, kv_spec: Sequence[LayerKV], device: torch.device
) -> ResolvedConfig:
    """Decide every "auto" from the loaded model and this machine, check the sizes against each other, and log them."""
    max_model_len = config.max_model_len or min(max_position, AUTO_MAX_MODEL_LEN)
    if max_model_len > max_position:
        raise RequestError("max_model_len", max_model_len, f"at most the model's context of {max_position} tokens")
    max_num_seqs = config.max_num_seqs or AUTO_MAX_NUM_SEQS
    budget = config.max_num_batched_tokens or max(AUTO_MAX_NUM_BATCHED_TOKENS, max_num_seqs)
    block_nbytes = config.block_size * sum(layer.nbytes_per_token for layer in kv_spec)
    most_blocks = max_num_seqs * -(-max_model_len // config.block_size)
    if config.kv_cache_gib is not None:
        pool_nbytes = int(config.kv_cache_gib * 2**30)
        if device.type == "cpu" and pool_nbytes > psutil.virtual_memory().total:
            raise RequestError("kv_cache_gib", config.kv_cache_gib, "at most the memory of this machine")
        num_blocks = pool_nbytes // block_nbytes
    else:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
        num_blocks = min(most_blocks, int(AUTO_KV_SHARE * free) // block_nbytes)
    if num_blocks < 2:
        least = 2 * block_nbytes / 2**30
        raise RequestError("kv_cache_gib", config.kv_cache_gib, f"at least {least:.6f} (two blocks of this model)")
    resolved = ResolvedConfig(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_queued_requests=config.max_queued_requests,
        num_blocks=num_blocks,
        block_size=config.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
        check_outputs=config.check_outputs,
        seed=config.seed,
    )
    logger.info("device=%s kv_cache=%.2f GiB %s", device, num_blocks * block_nbytes / 2**30, resolved)
    return resolved
