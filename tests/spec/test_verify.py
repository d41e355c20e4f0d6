"""verify_step: what it emits and accepts, and on what that depends; the coupled walk on trees."""

import pytest
import torch
from verify_cases import random_law

from decodex.spec.draft import Draft
from decodex.spec.verify import coupled_walk, draw_proposals, verify_step

TREE = Draft((3, 1, 2, 2, 0), (-1, -1, 0, 1, 3))


def test_coupled_walk_on_a_tree():
    assert coupled_walk([1, 9, 2, 9, 0, 4], TREE) == ([1, 2, 0, 4], [1, 3, 4])
    assert coupled_walk([1, 9, 0, 9, 0, 4], TREE) == ([1, 0], [1])
    assert coupled_walk([0, 9, 9, 9, 9, 9], TREE) == ([0], [])
    assert coupled_walk([5], None) == ([5], [])


def make_batch(generator, is_chain):
    """Seven sequences: drafts of points and of laws, and without a draft."""
    drafts, rows, starts = [], [], []
    for b in range(7):
        parents = (-1, 0, 1, 2) if is_chain else (-1, -1, 0, 1)
        q = random_law(4, 200, generator)
        if not is_chain:
            q[1] = q[0]
        tokens = torch.cat([q[:1].topk(2).indices[0], q[2:].argmax(1)]) if not is_chain else q.argmax(1)
        draft = Draft(tuple(tokens.tolist()), parents, laws=None if b % 3 else q)
        drafts.append(None if b == 4 else draft)
        starts.append(sum(map(len, rows)))
        p = random_law(1 if b == 4 else 5, 200, generator)
        p[: len(p) - 1] = 0.5 * p[: len(p) - 1] + 0.5 * q[: len(p) - 1]
        rows.append(p)
    seeds = [0, 5, -3, 2**64 - 1, 2**63, 7, 2**53]
    return torch.cat(rows), starts, drafts, seeds, [10 * b + 1 for b in range(7)]


@pytest.mark.parametrize(("method", "is_chain"), [("rejection", True), ("rejection", False), ("block", True)])
def test_batch_mates_change_nothing(method, is_chain):
    generator = torch.Generator().manual_seed(4)
    laws, starts, drafts, seeds, positions = make_batch(generator, is_chain)
    together = verify_step(method, laws, starts, drafts, seeds, positions)
    assert any(nodes for _, nodes in together)
    for b, draft in enumerate(drafts):
        emitted, accepted = together[b]
        assert len(emitted) == len(accepted) + 1
        if draft is not None:
            assert emitted[:-1] == [draft.token_ids[node] for node in accepted]
            assert not accepted or accepted == list(draft.paths[accepted[-1]])
        rows = laws[starts[b] : starts[b] + 1 + (0 if draft is None else len(draft))]
        assert verify_step(method, rows, [0], [draft], seeds[b : b + 1], positions[b : b + 1]) == [together[b]]
    assert verify_step(method, laws, starts, drafts, seeds, positions) == together
    assert verify_step(method, laws[:0], [], [], [], []) == []


@pytest.mark.parametrize("method", ["rejection", "block"])
def test_greedy_laws_emit_what_the_coupled_walk_emits(method):
    """At T = 0 laws are points, and every verifier follows them."""
    generator = torch.Generator().manual_seed(0)
    for size in range(5):
        tokens = torch.randint(0, 3, (size + 1,), generator=generator)
        draft = Draft.chain(torch.randint(0, 3, (size,), generator=generator).tolist()) if size else None
        laws = torch.eye(3)[tokens]
        expected = coupled_walk(tokens.tolist(), draft)
        assert verify_step(method, laws, [0], [draft], [9], [4]) == [expected]


@pytest.mark.parametrize("method", ["rejection", "block"])
@pytest.mark.parametrize("nothing", [0.0, torch.nan])
def test_a_law_without_tokens_ends_the_path(method, nothing):
    laws = torch.tensor([[0.0, 1.0], [nothing, nothing], [1.0, 0.0]])
    assert verify_step(method, laws, [0], [Draft.chain([1, 0])], [1], [1]) == [([1, -1], [0])]
    assert verify_step(method, laws[1:2], [0], [None], [1], [1]) == [([-1], [])]


def test_an_unknown_method_is_named():
    with pytest.raises(ValueError, match='method: expected "rejection" or "block", got \'coupled\''):
        verify_step("coupled", torch.ones(1, 1), [0], [None], [0], [0])
    with pytest.raises(ValueError, match="expected chains"):
        verify_step("block", torch.full((6, 4), 0.25), [0], [TREE], [0], [0])


def test_a_drafter_with_the_targets_law_is_always_accepted():
    """Through draws, coins and residuals of the same window."""
    law = random_law(1, 50, torch.Generator().manual_seed(6))
    for position in range(1, 60):
        keys = torch.tensor([8]), torch.tensor([position]), torch.tensor([position])
        token = int(draw_proposals(law, *keys, 1))
        draft = Draft((token,), (-1,), laws=law)
        (_, accepted), *_ = verify_step("rejection", law.repeat(2, 1), [0], [draft], [8], [position])
        assert accepted == [0]
