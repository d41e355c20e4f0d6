"""Both forward paths against transformers' own, and every row against itself in other company, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.attention import RowContexts
from decodex.kv_cache import KVCache
from decodex.models.interface import CausalLM, ForwardBatch
from decodex.models.invariance import flat_batch
from decodex.models.loader import load_model
from decodex.models.source import resolve_model

CPU = torch.device("cpu")
BLOCKS_EACH, BLOCK_SIZE = 2, 16
Spans = list[tuple[int, list[int], int]]


def new_cache(model: CausalLM) -> KVCache:
    kv = KVCache(model.kv_spec, 8 * BLOCKS_EACH, BLOCK_SIZE, CPU)
    for cache in (*kv.k, *kv.v):
        cache.fill_(float("nan"))  # what nobody wrote must not be read
    return kv


def run(model: CausalLM, kv: KVCache, spans: Spans) -> Tensor:
    return model.forward(flat_batch(spans, BLOCKS_EACH, BLOCK_SIZE, CPU), kv).logits


def check_against_transformers(tiny: Any, name: str, body: backend.Backend, force_generic: bool) -> None:
    logits, states = tiny.reference(name)
    model = tiny.load(name, body, force_generic)
    taps = tuple(range(model.num_layers - 1))
    with backend.set_backend(body):
        batch = flat_batch([(0, tiny.token_ids, 0)], BLOCKS_EACH, BLOCK_SIZE, CPU)
        out = model.forward(batch, new_cache(model), taps, wants_hidden=True)
    torch.testing.assert_close(out.logits, logits, atol=1e-4, rtol=1e-5)
    assert out.hidden is not None
    torch.testing.assert_close(out.hidden, states[-1], atol=1e-4, rtol=1e-5)
    assert tuple(out.taps) == taps
    for layer in taps:
        torch.testing.assert_close(out.taps[layer], states[layer + 1], atol=1e-4, rtol=1e-5)


def test_lean_equals_transformers(tiny: Any, lean_name: str, body: backend.Backend) -> None:
    assert type(tiny.load(lean_name, body)).__name__ == "LlamaModel"
    check_against_transformers(tiny, lean_name, body, force_generic=False)


def test_generic_equals_transformers(tiny: Any, generic_name: str, body: backend.Backend) -> None:
    assert type(tiny.load(generic_name, body)).__name__ == "TransformersModel"
    check_against_transformers(tiny, generic_name, body, force_generic=False)


@pytest.mark.parametrize("name", ["llama-tied-gqa", "qwen2", "gemma3", "gpt2", "mixtral", "gpt_oss", "deepseek_v3"])
def test_bf16_checkpoint_loses_nothing(tmp_path: Path, tiny: Any, name: str) -> None:
    """Weights are held in bf16 and everything is computed in fp32: transformers' fp32 with the same weights."""
    folder = tiny.make(tmp_path / name, name, torch.bfloat16)
    logits, _ = tiny.forward(folder, tiny.token_ids)
    model = load_model(resolve_model(str(folder)))
    torch.testing.assert_close(run(model, new_cache(model), [(0, tiny.token_ids, 0)]), logits, atol=1e-4, rtol=1e-5)
    assert model.weight_nbytes < 0.75 * load_model(resolve_model(str(tiny.folder(name)))).weight_nbytes


@pytest.mark.parametrize("name", ["llama-bias", "mistral-window", "qwen2-window", "qwen3"])
def test_generic_agrees_with_lean(tiny: Any, name: str, body: backend.Backend) -> None:
    check_against_transformers(tiny, name, body, force_generic=True)


def test_deepseek_caches_other_widths_for_keys_and_values(tiny: Any) -> None:
    (kv, *_) = tiny.load("deepseek_v3", "reference").kv_spec
    assert (kv.num_kv_heads, kv.k_dim, kv.v_dim) == (4, 24, 20)


def test_rows_do_not_depend_on_company(tiny: Any, any_name: str, body: backend.Backend) -> None:
    """Whole prompt, chunks, one by one, and mixed with other sequences: the same bits."""
    model = tiny.load(any_name, body)
    assert model.replayable
    ids = tiny.token_ids
    others = [list(reversed(ids)), ids[5:] + ids[:5]]
    with backend.set_backend(body):
        whole = run(model, new_cache(model), [(0, ids, 0)])
        kv = new_cache(model)
        chunks, start = [], 0
        for size in (7, 1, 2, 9, 4):
            chunks.append(run(model, kv, [(0, ids[start : start + size], start)]))
            start += size
        kv = new_cache(model)
        singles = [run(model, kv, [(3, [token], place)]) for place, token in enumerate(ids)]
        kv = new_cache(model)
        run(model, kv, [(1, others[0][:9], 0), (4, others[1][:3], 0)])
        first = run(model, kv, [(1, others[0][9:12], 9), (2, ids[:11], 0), (4, others[1][3:], 3)])[3:14]
        second = run(model, kv, [(5, others[1], 0), (2, ids[11:], 11), (1, others[0][12:], 12)])[23:35]
    assert torch.equal(torch.cat(chunks), whole)
    assert torch.equal(torch.cat(singles), whole)
    assert torch.equal(torch.cat([first, second]), whole)


@pytest.mark.parametrize("name", ["llama-tied-gqa", "qwen3", "mistral-window", "gemma2", "deepseek_v3"])
def test_draft_rows_equal_plain_rows(tiny: Any, name: str, body: backend.Backend) -> None:
    """A tree of drafts after a context: the row at the end of each path has the bits of that path decoded plainly."""
    model, ids = tiny.load(name, body), tiny.token_ids[:12]
    paths = [[20], [20, 21], [30], [30, 31]]  # nodes 0..3
    own = [[0], [0, 1], [2], [2, 3]]
    slots = [12, 13, 14, 15]
    with backend.set_backend(body):
        kv = new_cache(model)
        run(model, kv, [(0, ids, 0)])
        position = torch.tensor([12, 13, 12, 13], dtype=torch.int32)
        ancestors = [slots[node] for nodes in own for node in nodes]
        rows = RowContexts(
            block_tables=torch.tensor([[0, 1]], dtype=torch.int32),
            row_slot=torch.zeros(4, dtype=torch.int32),
            ctx_lens=torch.full((4,), 12, dtype=torch.int32),
            anc_cu=torch.tensor([0, 1, 3, 4, 6], dtype=torch.int32),
            anc_slots=torch.tensor(ancestors),
            block_size=BLOCK_SIZE,
        )
        tokens = torch.tensor([path[-1] for path in paths])
        tree = model.forward(ForwardBatch(tokens, position, torch.tensor(slots), rows, torch.arange(4)), kv).logits
        for row, path in enumerate(paths):
            plain = run(model, new_cache(model), [(1, ids + path, 0)])[-1]
            assert torch.equal(tree[row], plain), path


@pytest.mark.parametrize(("name", "force_generic"), [("llama-tied-gqa", False), ("qwen2", True), ("mixtral", False)])
def test_logits_only_for_the_rows_asked(tiny: Any, name: str, force_generic: bool) -> None:
    model = tiny.load(name, "reference", force_generic)
    batch = flat_batch([(0, tiny.token_ids, 0)], BLOCKS_EACH, BLOCK_SIZE, CPU)
    with backend.set_backend("reference"):
        every = model.forward(batch, new_cache(model), (), True)
        some = ForwardBatch(batch.token_ids, batch.positions, batch.slot_mapping, batch.rows, torch.tensor([22, 3]))
        few = model.forward(some, new_cache(model), (), True)
        none = ForwardBatch(batch.token_ids, batch.positions, batch.slot_mapping, batch.rows, torch.tensor([]).long())
        nothing = model.forward(none, new_cache(model))
    assert torch.equal(few.logits, every.logits[[22, 3]])
    assert few.hidden is not None
    assert every.hidden is not None
    assert torch.equal(few.hidden, every.hidden)
    assert nothing.logits.shape == (0, model.vocab_size)
    assert nothing.hidden is None


def test_results_survive_the_next_forward(tiny: Any) -> None:
    """Taps and logits are the caller's: a later step reuses scratch memory but must not write into them."""
    model = tiny.load("llama", "reference")
    with backend.set_backend("reference"):
        kv = new_cache(model)
        batch = flat_batch([(0, tiny.token_ids, 0)], BLOCKS_EACH, BLOCK_SIZE, CPU)
        out = model.forward(batch, kv, (0,))
        before = (out.logits.clone(), out.taps[0].clone())
        run(model, kv, [(1, list(reversed(tiny.token_ids)), 0)])
    assert torch.equal(out.logits, before[0])
    assert torch.equal(out.taps[0], before[1])
