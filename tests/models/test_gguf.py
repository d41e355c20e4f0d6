"""GGUF files: converted once to bf16 safetensors that run on the lean path; damaged ones named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers

from decodex.errors import ModelError
from decodex.kv_cache import KVCache
from decodex.models import gguf as conversion
from decodex.models.invariance import flat_batch
from decodex.models.loader import load_model
from decodex.models.source import resolve_model
from decodex.tokenizer import Tokenizer

HEADS, KV_HEADS, HIDDEN, INNER, LAYERS = 4, 2, 64, 96, 2
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODEX_CACHE", str(tmp_path / "cache"))


def byte_tokens() -> list[str]:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    return ["<end>", *alphabet, "he", "ll", "hell"]


def interleave_rotary(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """GGUF keeps the rotary pairs of Llama's q and k side by side."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path) -> transformers.PreTrainedModel:
    """A tiny Llama in fp32 GGUF; returns the same model in transformers, rounded to bf16."""
    tokens = byte_tokens()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["h e", "l l", "he ll"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}<end>{% endfor %}")
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for layer in range(LAYERS):
        for short, long in NAMES.items():
            value = weights[f"model.layers.{layer}.{long}.weight"]
            if short in ("attn_q", "attn_k"):
                value = interleave_rotary(value, HEADS if short == "attn_q" else KV_HEADS)
            writer.add_tensor(f"blk.{layer}.{short}.weight", np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model.to(torch.bfloat16).float().eval()


def test_gguf_runs_and_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = write_gguf(tmp_path / "tiny.gguf")
    files = resolve_model(str(tmp_path / "tiny.gguf"))
    model = load_model(files)
    tokenizer = Tokenizer.load(files)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == "hello<end>"
    assert len(ids) == 3  # hell, o, <end>
    assert tokenizer.eos_token_ids == {0}
    kv = KVCache(model.kv_spec, 1, 16, torch.device("cpu"))
    out = model.forward(flat_batch([(0, ids, 0)], 1, 16, torch.device("cpu")), kv)
    with torch.no_grad():
        torch.testing.assert_close(out.logits, reference(torch.tensor([ids])).logits[0], atol=1e-5, rtol=1e-5)
    monkeypatch.setattr(conversion, "_convert", lambda *_: pytest.fail("converted again"))
    assert resolve_model(str(tmp_path / "tiny.gguf")).path == files.path
    monkeypatch.undo()


def test_folder_with_one_gguf_and_with_two(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_gguf(folder / "a.gguf")
    assert resolve_model(str(folder)).architecture == "LlamaForCausalLM"
    (folder / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"holds 2 GGUF files; name one of a\.gguf, b\.gguf"):
        resolve_model(str(folder))


@pytest.mark.parametrize("keep", [0, 3, 4, 20, 900, 40000, -1])
def test_truncated_gguf(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"tiny\.gguf: (truncated|not a GGUF file)"):
        resolve_model(str(file))
    assert not (tmp_path / "cache" / "converted").exists()


def test_unknown_gguf_architecture_and_parts(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "odd.gguf"), "gizmo")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"odd\.gguf: this GGUF can't be converted"):
        resolve_model(str(tmp_path / "odd.gguf"))
    (tmp_path / "big-00001-of-00003.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="split into several files"):
        resolve_model(str(tmp_path / "big-00001-of-00003.gguf"))
