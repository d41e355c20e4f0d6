"""The layer in one call: bit for bit the ops it is made of."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from decodex.kernels import backend
from decodex.kernels.activation import silu_mul
from decodex.kernels.attention import RowContexts, paged_attention
from decodex.kernels.layer import FusedLayer, LayerParts, fuse_layer
from decodex.kernels.linear import pack_linear
from decodex.kernels.norm import rms_norm
from decodex.kernels.rope import rope_and_store_

pytestmark = pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library")
H, INNER, DIM, NUM_SLOTS, BLOCK = 48, 72, 16, 64, 4


def make_parts(kind="fp32", heads=4, kv_heads=2, has_norms=False, has_bias=False, window=0, width=H, num_logits=0):
    generator = torch.Generator().manual_seed(heads + window)

    def linear(size, in_features):
        weight = torch.randn(size, in_features, generator=generator) * in_features**-0.5
        bias = torch.randn(size, generator=generator) if has_bias else None
        return pack_linear(weight, bias, kind)

    norms = [torch.rand(DIM, generator=generator) + 0.5 if has_norms else None for _ in "qk"]
    return LayerParts(
        qkv=linear((heads + 2 * kv_heads) * DIM, width),
        out=linear(H, heads * DIM),
        gate_up=linear(2 * INNER, H),
        down=linear(H, INNER),
        post_norm=torch.rand(H, generator=generator) + 0.5,
        q_norm=norms[0],
        k_norm=norms[1],
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=DIM,
        eps=1e-5,
        window=window,
        final_norm=torch.rand(H, generator=generator) if num_logits else None,
        head=linear(num_logits, H) if num_logits else None,
    )


def fused(parts: LayerParts) -> FusedLayer:
    layer = fuse_layer(parts)
    assert layer is not None
    return layer


def arguments(parts: LayerParts, num_rows: int, seed: int = 0):
    """stream, pieces, positions, slots, rows, cos_sin, k_cache, v_cache: two block tables, ancestors."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator)

    tables = torch.randperm(NUM_SLOTS // BLOCK, generator=generator).view(2, -1).int()
    places = torch.arange(num_rows) + 3
    of_row = torch.arange(num_rows, dtype=torch.int32) % 2
    slots = tables[of_row.long(), places // BLOCK].long() * BLOCK + places % BLOCK
    rows = RowContexts(
        block_tables=tables,
        row_slot=of_row,
        ctx_lens=torch.full((num_rows,), 3, dtype=torch.int32),
        anc_cu=torch.arange(num_rows + 1, dtype=torch.int32),
        anc_slots=slots,
        block_size=BLOCK,
    )
    stream, width = randn(num_rows, H), parts.qkv.in_features
    pieces = [(stream, randn(H))]  # the stream itself is among what is read
    if width > H:
        pieces.append((randn(num_rows, width - H + 5)[:, 5:], None))
    cache = [randn(NUM_SLOTS, parts.num_kv_heads, DIM) for _ in "kv"]
    cos_sin = randn(40, DIM - 4)
    return [stream, pieces, places.int(), slots, rows, cos_sin, *cache]


def in_turns(parts: LayerParts, stream, pieces, positions, slots, rows, cos_sin, k, v):
    laid = [x if norm is None else rms_norm(x, norm, parts.eps) for x, norm in pieces]
    qkv = parts.qkv(torch.cat(laid, dim=1))
    rope_and_store_(qkv, positions, cos_sin, slots, k, v, parts.q_norm, parts.k_norm, parts.eps)
    query = qkv[:, : parts.num_heads * DIM].view(-1, parts.num_heads, DIM)
    context = paged_attention(query, k, v, rows, DIM**-0.5, parts.window).flatten(1)
    parts.out(context, None, stream)
    parts.down(silu_mul(parts.gate_up(rms_norm(stream, parts.post_norm, parts.eps))), None, stream)
    if parts.head is None or parts.final_norm is None:
        return None
    normed = rms_norm(stream, parts.final_norm, parts.eps)
    return normed, parts.head(normed)


@pytest.mark.parametrize("num_rows", [1, 2, 5, 20])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": "int8", "has_bias": True, "has_norms": True},
        {"kind": "bf16", "heads": 2, "window": 2, "width": 2 * H, "num_logits": 70},
        {"kind": "fp16", "heads": 6, "kv_heads": 1, "num_logits": 5},
    ],
)
def test_one_call_has_the_bits_of_many(options, num_rows):
    parts = make_parts(**options)
    mine, theirs = arguments(parts, num_rows), arguments(parts, num_rows)
    found, expected = fused(parts)(*mine), in_turns(parts, *theirs)
    for place in (0, 6, 7):  # the stream and the cache
        assert torch.equal(mine[place], theirs[place])
    assert not torch.equal(mine[0], arguments(parts, num_rows)[0])
    assert (found is None) == (expected is None) == ("num_logits" not in options)
    if found is not None and expected is not None:
        assert all(map(torch.equal, found, expected))


WRONG = {
    "stream": (0, lambda t: t[:, ::2]),
    "pieces: expected one or two, 48 wide": (1, lambda pieces: pieces * 2),
    "pieces: expected float32": (1, lambda pieces: [(pieces[0][0].double(), None)]),
    "pieces: expected contiguous float32": (1, lambda pieces: [(pieces[0][0], torch.ones(3))]),
    "positions": (2, lambda t: t.long()),
    "slots": (3, lambda t: t[1:]),
    "cos_sin": (5, lambda t: torch.zeros(40, DIM + 2)),
    "k_cache": (6, lambda t: t.double()),
    "v_cache": (7, lambda t: t[1:]),
    "positions: expected values in 0..39": (2, lambda t: t + 38),
    "slots: expected values below 64": (3, lambda t: t + 60),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named_and_nothing_is_written(message):
    parts = make_parts()
    given = list(arguments(parts, 3))
    place, change = WRONG[message]
    before = [given[0].clone(), given[6].clone()]
    whole = given[6]
    given[place] = change(given[place])
    with pytest.raises(ValueError, match=message):
        fused(parts)(*given)
    assert torch.equal(whole, before[1])
    assert place == 0 or torch.equal(given[0], before[0])


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 and 2 heads of 16 do not fit"):
        fuse_layer(dataclasses.replace(make_parts(), num_heads=3))


def test_other_bodies_have_no_such_call():
    with backend.set_backend("reference"):
        assert fuse_layer(make_parts()) is None
