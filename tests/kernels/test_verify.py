"""verify_drafts, log_law and draw_proposals: both CPU bodies bit for bit, edges, batch mates, and named errors."""

import pytest
import torch
from verify_cases import make_case, random_law

from decodex.kernels import backend
from decodex.kernels.verify import FlatDrafts, draw_proposals, log_law, verify_drafts

NATIVE = pytest.param("native", marks=pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library"))
both_bodies = pytest.mark.parametrize("body", ["reference", NATIVE])
LARGEST_COIN = 1 - 2.0**-24


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library")
@pytest.mark.parametrize("is_block", [False, True])
@pytest.mark.parametrize("vocab_size", [2, 13, 64, 1001, 10_000])
def test_bodies_are_bit_equal(vocab_size, is_block):
    generator = torch.Generator().manual_seed(vocab_size)
    for _ in range(6):
        case = make_case(vocab_size, 8, is_block, generator)
        native = verify_drafts(*case, is_block)
        with backend.set_backend("reference"):
            expected = verify_drafts(*case, is_block)
            logs = log_law(case[0])
        assert all(torch.equal(a, b) for a, b in zip(native, expected))
        assert torch.equal(log_law(case[0]), logs)


@both_bodies
@pytest.mark.parametrize("is_block", [False, True])
def test_batch_mates_and_threads_change_nothing(body, is_block):
    generator = torch.Generator().manual_seed(3)
    laws, drafts, coins = make_case(500, 6, is_block, generator)
    with backend.set_backend(body):
        together = verify_drafts(laws, drafts, coins, is_block)
        for b in range(6):
            nodes = slice(drafts.cu_nodes[b], drafts.cu_nodes[b + 1])
            size = nodes.stop - nodes.start
            alone = FlatDrafts([0], [0, size], drafts.parents[nodes], drafts.token_ids[nodes], drafts.laws[b : b + 1])
            rows = laws[drafts.starts[b] : drafts.starts[b] + 1 + size]
            verdict = verify_drafts(rows, alone, coins[nodes], is_block)
            assert torch.equal(verdict.log_left[0], together.log_left[b])
            assert torch.equal(verdict.is_accepted, together.is_accepted[nodes])


def one(laws, token_ids, coins, is_block, draft_laws=None, parents=None):
    """Accepted nodes and the normalised law left of one draft."""
    size = len(token_ids)
    parents = list(range(-1, size - 1)) if parents is None else parents
    verdict = verify_drafts(
        torch.tensor(laws), FlatDrafts([0], [0, size], parents, token_ids, [draft_laws]), torch.tensor(coins), is_block
    )
    left = torch.exp(verdict.log_left[0])
    return verdict.is_accepted.nonzero().flatten().tolist(), (left / left.sum().clamp(min=1e-30)).tolist()


@both_bodies
@pytest.mark.parametrize("is_block", [False, True])
def test_edges_of_coins_and_laws(body, is_block):
    """A token without mass is refused at u = 0, one with all of it accepted at the largest u, rounded mass or not."""
    with backend.set_backend(body):
        assert one([[0.0, 1.0], [0.5, 0.5]], [0], [0.0], is_block) == ([], [0.0, 1.0])
        assert one([[0.0, 1.0], [0.25, 0.75]], [1], [LARGEST_COIN], is_block) == ([0], [0.25, 0.75])
        accepted, left = one([[1e-8, LARGEST_COIN], [1.0, 0.0]], [1], [LARGEST_COIN], is_block)
        assert (accepted, left) == ([], [1.0, 0.0])
        accepted, left = one([[0.0, LARGEST_COIN], [1.0, 0.0]], [1], [LARGEST_COIN], is_block)
        assert (accepted, left) in [([0], [1.0, 0.0]), ([], [0.0, 1.0])]  # the same token, as a draft or after it
        same = torch.tensor([[0.7, 0.3]])
        assert one([[0.7, 0.3], [1.0, 0.0]], [0], [LARGEST_COIN], is_block, same)[0] == [0]


@both_bodies
def test_a_small_remainder_keeps_its_digits(body):
    """The second sibling is drawn from what the first leaves, be it 1e-12: its law is normalised from that alone."""
    draft = torch.tensor([1.0, 3e-12, 1e-12, 0.0]).expand(2, 4)
    target = [0.0, 0.0, 0.5, 0.5]
    with backend.set_backend(body):
        for token, coin, accepted in ((2, 0.99, [1]), (1, 0.0, [])):
            found, left = one(
                [target, target, target], [0, token], [0.0, coin], False, draft.contiguous(), parents=[-1, -1]
            )
            assert found == accepted
        assert left == pytest.approx([0.0, 0.0, 1 / 3, 2 / 3], abs=1e-6)  # (0.5 - 0.25, 0.5) without the second


@both_bodies
@pytest.mark.parametrize("is_block", [False, True])
def test_laws_without_tokens(body, is_block):
    """Nothing is left after a root of zeros or NaN; block verification counts them as a token no draft has."""
    with backend.set_backend(body):
        for value in (0.0, torch.nan):
            accepted, left = one([[value, value], [0.5, 0.5]], [0], [0.0], is_block)
            assert (accepted, left) == ([], [0.0, 0.0])
            laws, q = [[0.5, 0.5], [value, value], [0.5, 0.5]], torch.tensor([[0.5, 0.5], [0.5, 0.5]])
            accepted, left = one(laws, [0, 1], [LARGEST_COIN, 0.0], is_block, q)
            assert (accepted, left) == ([0], [0.0, 0.0])


@both_bodies
def test_draws_end_with_the_tokens(body):
    laws = torch.tensor([[0.0, 0.25, 0.0, 0.75], [0.0, 0.0, 0.0, 0.0], [torch.nan] * 4])
    seeds, positions = torch.arange(3), torch.tensor([5, 6, 7])
    with backend.set_backend(body):
        drawn = draw_proposals(laws, seeds, positions, positions, 6)
        assert sorted(drawn[0].tolist()) == [-1, -1, -1, -1, 1, 3]
        assert drawn[1:].tolist() == [[-1] * 6] * 2
        assert draw_proposals(laws[:0], seeds[:0], positions[:0], positions[:0], 3).shape == (0, 3)
        assert draw_proposals(laws, seeds, positions, positions, 1)[:, 0].tolist() == [drawn[0, 0], -1, -1]


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library")
def test_draws_of_the_bodies_are_equal():
    generator = torch.Generator().manual_seed(1)
    laws = random_law(40, 3001, generator)
    seeds, positions, windows = (torch.randint(0, 2**31, (40,), generator=generator) for _ in range(3))
    for num in (1, 4):
        native = draw_proposals(laws, seeds, positions, windows, num, torch.arange(40))
        with backend.set_backend("reference"):
            assert torch.equal(native, draw_proposals(laws, seeds, positions, windows, num, torch.arange(40)))


def test_wrong_arguments_are_named():
    laws, coins = torch.full((3, 4), 0.25), torch.tensor([0.5, 0.5])
    good = FlatDrafts([0], [0, 2], [-1, 0], [1, 2], [None])

    def wrong(text, drafts=good, laws=laws, coins=coins, is_block=False):
        with pytest.raises(ValueError, match=text):
            verify_drafts(laws, drafts, coins, is_block)

    wrong("laws: expected fp32", laws=laws.double())
    wrong(r"coins: expected float32 \[2\]", coins=coins[:1])
    wrong("token_ids: expected 2 of 0..3", good._replace(token_ids=[1, 4]))
    wrong("parents: expected earlier nodes", good._replace(parents=[-1, 1]))
    wrong("starts: expected 3 of 3 rows", good._replace(starts=[1]))
    wrong("drafts: expected 1 drafts of 2 nodes", good._replace(cu_nodes=[0, 1]))
    wrong(r"draft laws: expected \[2, 4\]", good._replace(laws=[laws]))
    wrong("draft laws: expected fp32", good._replace(laws=[laws[:2].double()]))
    wrong("drafts: expected chains", good._replace(parents=[-1, -1]), is_block=True)
    with pytest.raises(ValueError, match="num: expected"):
        draw_proposals(laws, torch.zeros(3).long(), torch.zeros(3).long(), torch.zeros(3).long(), 0)
