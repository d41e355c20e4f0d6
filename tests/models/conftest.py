"""Tiny random models on disk, one per architecture, and the reference that both forward paths are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from decodex.errors import ModelError
from decodex.kernels import backend
from decodex.models.interface import CausalLM
from decodex.models.loader import load_model
from decodex.models.source import ModelFiles, resolve_model

transformers.utils.logging.disable_progress_bar()

VOCAB = 96
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# name -> (config class, fields that differ from COMMON)
LEAN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama-tied-gqa": ("LlamaConfig", {"tie_word_embeddings": True, "head_dim": 32}),
    "llama-bias": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("LlamaConfig", {"rope_parameters": LLAMA3_ROPE}),
    "linear-rope": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral-window": ("MistralConfig", {"sliding_window": 5}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
}
GENERIC: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-yarn": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16}),
    "phi3": ("Phi3Config", {}),
    "gpt_neox": ("GPTNeoXConfig", {"rotary_pct": 0.5}),
    "gpt2": ("GPT2Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "gpt_oss": (
        "GptOssConfig",
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "moe_intermediate_size": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 20,
            "rope_interleave": True,
        },
    ),
}


def make_model(folder: Path, name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """Write the tiny model `name` with random weights (norms and biases too) to `folder`."""
    class_name, fields = {**LEAN, **GENERIC}[name]
    torch.manual_seed(seed)
    config = getattr(transformers, class_name)(**{**COMMON, **fields})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = torch.randn_like(parameter)
            parameter.copy_(1 + 0.1 * spread if parameter.dim() == 1 else 0.2 * spread)
    model.to(dtype).save_pretrained(folder)
    return folder


def reference_forward(folder: Path, token_ids: list[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """transformers' own fp32 forward with eager attention: logits [T, V], hidden states [T, H] by layer."""
    auto = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        out = model(torch.tensor([token_ids]), output_hidden_states=True, use_cache=False)
    return out.logits[0], tuple(state[0] for state in out.hidden_states)


class TinyModels:
    """Makes, loads and remembers tiny models for a test session."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._loaded: dict[tuple[str, str, bool], CausalLM] = {}
        self._references: dict[str, tuple[Tensor, tuple[Tensor, ...]]] = {}
        self.token_ids = torch.randint(3, VOCAB, (23,), generator=torch.Generator().manual_seed(1)).tolist()

    make = staticmethod(make_model)
    forward = staticmethod(reference_forward)

    def folder(self, name: str) -> Path:
        """The model `name` on disk; not to be changed by a test."""
        folder = self._root / name
        return folder if folder.exists() else make_model(folder, name)

    def load(self, name: str, body: backend.Backend, force_generic: bool = False) -> CausalLM:
        """The model packed for the native or the reference bodies; run it under the same `set_backend`."""
        key = (name, body, force_generic)
        if key not in self._loaded:
            with backend.set_backend(body):
                self._loaded[key] = load_model(resolve_model(str(self.folder(name))), force_generic=force_generic)
        return self._loaded[key]

    def reference(self, name: str) -> tuple[Tensor, tuple[Tensor, ...]]:
        """transformers' logits and hidden states for `token_ids`."""
        if name not in self._references:
            self._references[name] = reference_forward(self.folder(name), self.token_ids)
        return self._references[name]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny layers gain nothing from threads, and on a busy machine waiting for each other costs minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session", params=sorted(LEAN))
def lean_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=sorted(GENERIC))
def generic_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=sorted({**LEAN, **GENERIC}))
def any_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["native", "reference"])
def body(request: pytest.FixtureRequest) -> backend.Backend:
    if request.param == "native" and backend.cpu_library() is None:
        pytest.skip("no compiled CPU library here")
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def fresh_folder(tmp_path: Path) -> Callable[[str], Path]:
    """A tiny model of its own for a test that damages it."""
    return lambda name: make_model(tmp_path / name, name)


@pytest.fixture(scope="session")
def demo_files() -> ModelFiles:
    try:
        return resolve_model("smollm2-135m")
    except ModelError as error:
        pytest.skip(f"the demo model can't be had: {error}")
