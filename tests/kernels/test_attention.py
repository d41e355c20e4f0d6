"""Paged attention: fp64 oracle, bits that depend on nothing but the row, both bodies."""

import pytest
import torch

from decodex.kernels import backend
from decodex.kernels.attention import RowContexts, paged_attention

NATIVE = pytest.param("native", marks=pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library"))
both_bodies = pytest.mark.parametrize("body", ["reference", NATIVE])


class Scene:
    """Requests with keys in scattered blocks of one cache; rows are (request, ctx_len, ancestor positions)."""

    def __init__(self, lengths, *, hq=6, hkv=2, dk=64, dv=64, block_size=16, seed=0, order_seed=1):
        generator = torch.Generator().manual_seed(seed)
        self.shape = (hq, hkv, dk, dv)
        self.block_size = block_size
        self.keys = [torch.randn(n, hkv, dk, generator=generator) for n in lengths]
        self.values = [torch.randn(n, hkv, dv, generator=generator) for n in lengths]
        blocks_each = [(n + block_size - 1) // block_size for n in lengths]
        num_blocks = sum(blocks_each) + 3
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(order_seed))
        self.k_cache = torch.full((num_blocks * block_size, hkv, dk), 1e6)
        self.v_cache = torch.full((num_blocks * block_size, hkv, dv), torch.nan)  # nothing unseen may leak
        self.tables = torch.zeros(len(lengths), max(1, *blocks_each), dtype=torch.int32)
        self.slots = []
        for i, n in enumerate(lengths):
            mine, order = order[: blocks_each[i]], order[blocks_each[i] :]
            self.tables[i, : blocks_each[i]] = mine
            slots = (mine[:, None] * block_size + torch.arange(block_size)).flatten()[:n]
            self.slots.append(slots)
            self.k_cache[slots], self.v_cache[slots] = self.keys[i], self.values[i]

    def queries(self, num_rows, seed=7):
        return torch.randn(num_rows, self.shape[0], self.shape[2], generator=torch.Generator().manual_seed(seed))

    def contexts(self, rows):
        ancestors = [self.slots[request][list(own)] for request, _, own in rows]
        cu = torch.tensor([0] + [len(own) for own in ancestors]).cumsum(0)
        return RowContexts(
            block_tables=self.tables,
            row_slot=torch.tensor([request for request, _, _ in rows], dtype=torch.int32),
            ctx_lens=torch.tensor([ctx for _, ctx, _ in rows], dtype=torch.int32),
            anc_cu=cu.int(),
            anc_slots=torch.cat(ancestors) if ancestors else torch.zeros(0, dtype=torch.int64),
            block_size=self.block_size,
        )

    def attend(self, q, rows, **kw):
        return paged_attention(q, self.k_cache, self.v_cache, self.contexts(rows), self.shape[2] ** -0.5, **kw)

    def exact(self, q, rows, window=0, softcap=0.0, sinks=None):
        """fp64, straight from the definition."""
        hq, hkv, dk, dv = self.shape
        out = torch.zeros(len(rows), hq, dv, dtype=torch.float64)
        for row, (request, ctx, own) in enumerate(rows):
            visible = [*range(ctx), *own]
            if window:
                visible = visible[-window:]
            for head in range(hq):
                k = self.keys[request][visible, head * hkv // hq].double()
                score = k @ q[row, head].double() * dk**-0.5
                if softcap:
                    score = softcap * torch.tanh(score / softcap)
                if sinks is not None:
                    score = torch.cat([score, sinks[head : head + 1].double()])
                p = torch.softmax(score, 0)[: len(visible)]
                out[row, head] = p @ self.values[request][visible, head * hkv // hq].double()
        return out


def plain(request, ctx):
    return (request, ctx, ())


MIXED = [plain(0, 1), plain(1, 31), plain(1, 32), plain(1, 33), plain(2, 64), plain(3, 600), (3, 500, (510, 511, 520))]
LENGTHS = [1, 40, 64, 600]


@both_bodies
@pytest.mark.parametrize(
    ("hq", "hkv", "dk", "dv"),
    [(9, 3, 64, 64), (4, 4, 32, 32), (8, 1, 128, 128), (4, 2, 192, 128), (2, 1, 20, 12), (3, 3, 7, 5), (2, 2, 256, 80)],
)
def test_against_fp64(body, hq, hkv, dk, dv):
    scene = Scene(LENGTHS, hq=hq, hkv=hkv, dk=dk, dv=dv)
    q = scene.queries(len(MIXED)) * 2
    with backend.set_backend(body):
        result = scene.attend(q, MIXED)
    torch.testing.assert_close(result.double(), scene.exact(q, MIXED), atol=1e-5, rtol=1e-5)


@both_bodies
@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 63, 64, 100, 256, 257, 599, 600, 5000])
def test_window(body, window):
    scene = Scene(LENGTHS)
    q = scene.queries(len(MIXED))
    with backend.set_backend(body):
        result = scene.attend(q, MIXED, window=window)
    torch.testing.assert_close(result.double(), scene.exact(q, MIXED, window=window), atol=1e-5, rtol=1e-5)


@both_bodies
@pytest.mark.parametrize("kw", [{"softcap": 2.0}, {"softcap": 50.0}, {"sinks": True}, {"softcap": 5.0, "window": 40}])
def test_softcap_and_sinks(body, kw):
    scene = Scene(LENGTHS)
    q = scene.queries(len(MIXED)) * 3
    if kw.get("sinks"):
        kw = kw | {"sinks": torch.tensor([0.0, 5.0, -5.0, 30.0, -100.0, 1.0])}
    with backend.set_backend(body):
        result = scene.attend(q, MIXED, **kw)
    torch.testing.assert_close(result.double(), scene.exact(q, MIXED, **kw), atol=2e-5, rtol=1e-5)


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library")
def test_body_against_body():
    scene = Scene(LENGTHS)
    q = scene.queries(len(MIXED))
    with backend.set_backend("native"):
        native = scene.attend(q, MIXED, window=300, softcap=30.0)
    with backend.set_backend("reference"):
        torch.testing.assert_close(native, scene.attend(q, MIXED, window=300, softcap=30.0), atol=1e-5, rtol=1e-5)


@both_bodies
@pytest.mark.parametrize("kw", [{}, {"window": 45}, {"softcap": 10.0, "sinks": torch.linspace(-1, 1, 6)}])
def test_a_row_has_the_same_bits_in_every_company(body, kw):
    """Alone, in a chunk, among 64 others, on other threads."""
    scene = Scene([400, 90, 300])
    chunk = [plain(0, ctx) for ctx in range(270, 334)]
    others = [plain(1 + i % 2, 1 + i) for i in range(64)]
    q = scene.queries(128)
    num_threads = torch.get_num_threads()
    with backend.set_backend(body):
        together = scene.attend(q, chunk + others, **kw)
        mixed = torch.randperm(128, generator=torch.Generator().manual_seed(0))
        shuffled = scene.attend(q[mixed], [(chunk + others)[i] for i in mixed], **kw)
        assert torch.equal(shuffled, together[mixed])
        for row in (0, 1, 7, 31, 63, 64, 90, 127):
            alone = scene.attend(q[row : row + 1], [(chunk + others)[row]], **kw)
            assert torch.equal(alone[0], together[row])
        torch.set_num_threads(1)
        try:
            assert torch.equal(scene.attend(q, chunk + others, **kw), together)
        finally:
            torch.set_num_threads(num_threads)


@both_bodies
@pytest.mark.parametrize("total", [1, 2, 16, 31, 32, 33, 64, 65, 255, 256, 257, 520])
@pytest.mark.parametrize("window", [0, 40])
def test_ancestors_equal_the_block_table(body, total, window):
    """A row gives the same bits whichever of its keys are read through its own list."""
    scene = Scene([total])
    q = scene.queries(1)
    with backend.set_backend(body):
        plain_row = scene.attend(q, [plain(0, total)], window=window)
        for ctx in {0, 1, total - 1, total // 2, max(0, total - 5), max(0, total - 33)}:
            row = (0, ctx, tuple(range(ctx, total)))
            assert torch.equal(scene.attend(q, [row], window=window), plain_row)


@both_bodies
def test_tree_rows_equal_recomputed_chains(body):
    """Siblings lie in the slots between; a chain with the same keys at the same logical positions gives the bits."""
    context, paths = 61, [(0,), (0, 1), (0, 2), (0, 1, 3), (0, 2, 4), (0, 2, 4, 5)]
    tree = Scene([context + 6])
    q = tree.queries(len(paths))
    rows = [(0, context, tuple(context + node for node in path)) for path in paths]
    with backend.set_backend(body):
        drafted = tree.attend(q, rows)
        for i, path in enumerate(paths):
            chain = Scene([context + len(path)], order_seed=9 + i, block_size=8)
            positions = [*range(context), *(context + node for node in path)]
            chain.k_cache[chain.slots[0]] = tree.keys[0][positions]
            chain.v_cache[chain.slots[0]] = tree.values[0][positions]
            recomputed = chain.attend(q[i : i + 1], [plain(0, context + len(path))])
            assert torch.equal(recomputed[0], drafted[i])


@both_bodies
def test_physical_blocks_do_not_matter(body):
    first, second = Scene(LENGTHS, order_seed=1), Scene(LENGTHS, order_seed=2, block_size=5)
    q = first.queries(len(MIXED))
    with backend.set_backend(body):
        assert torch.equal(first.attend(q, MIXED), second.attend(q, MIXED))


@both_bodies
def test_long_context_on_its_own_and_in_a_chunk(body):
    """A lone row splits its segments over the threads, a chunk does not: same bits."""
    scene = Scene([1500], hq=3, hkv=1)
    rows = [plain(0, 1500 - i) for i in range(60)]
    q = scene.queries(60)
    with backend.set_backend(body):
        together = scene.attend(q, rows)
        for row in (0, 30, 59):
            assert torch.equal(scene.attend(q[row : row + 1], [rows[row]])[0], together[row])


@both_bodies
def test_strided_queries_given_output_and_empty_rows(body):
    scene = Scene([50])
    wide = torch.randn(3, 6 * 64 + 100)
    q = wide[:, : 6 * 64].unflatten(1, (6, 64))
    rows = [plain(0, 50), plain(0, 0), plain(0, 20)]
    with backend.set_backend(body):
        out = torch.empty(3, 6, 64)
        assert scene.attend(q, rows, out=out) is out
        assert torch.equal(out, scene.attend(q.contiguous(), rows))
        assert torch.equal(out[1], torch.zeros(6, 64))
        assert scene.attend(q[:0], []).shape == (0, 6, 64)


def test_wrong_arguments_are_named():
    scene = Scene([50])
    rows = [plain(0, 50)]
    with pytest.raises(ValueError, match="q, k_cache, v_cache: expected"):
        scene.attend(scene.queries(2), rows)
    with pytest.raises(ValueError, match="sinks: expected"):
        scene.attend(scene.queries(1), rows, sinks=torch.zeros(5))
    with pytest.raises(ValueError, match=r"ctx_lens: expected contiguous torch\.int32"):
        RowContexts(
            scene.tables,
            torch.zeros(1, dtype=torch.int32),
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(2, dtype=torch.int32),
            torch.zeros(0, dtype=torch.int64),
            16,
        )
