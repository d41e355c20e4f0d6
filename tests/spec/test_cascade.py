"""The cascade: order, one call a member, forced chains extended, control's limits."""

from __future__ import annotations

from proposer_views import view_of

from decodex.spec.cascade import Cascade
from decodex.spec.draft import Draft
from decodex.spec.forced import ForcedProposer
from decodex.spec.ngram import NgramProposer
from decodex.spec.prediction import PredictionProposer
from decodex.spec.suffix import SuffixProposer


class Scripted:
    """Drafts by key; keeps what it was asked. Has weights: it cannot draft after draft tokens."""

    def __init__(self, name, drafts):
        self.name = name
        self.drafts = drafts
        self.calls = []
        self.forgotten = []

    def propose(self, views):
        self.calls.append([(view.key, view.max_depth) for view in views])
        return [self.drafts.get(view.key) for view in views]

    def forget(self, key):
        self.forgotten.append(key)


def test_the_first_draft_is_taken_and_each_member_is_called_once():
    first = Scripted("first", {1: Draft.chain([5], "first")})
    second = Scripted("second", {1: Draft.chain([6], "second"), 2: Draft.chain([7], "second")})
    third = Scripted("third", {})
    cascade = Cascade([first, second, third])
    drafts = cascade.propose([view_of([0], key=key, depth=4 if key < 4 else 0) for key in (1, 2, 3, 4)])
    assert [draft and draft.token_ids for draft in drafts] == [(5,), (7,), None, None]
    assert first.calls == [[(1, 4), (2, 4), (3, 4)]]
    assert second.calls == [[(2, 4), (3, 4)]]
    assert third.calls == [[(3, 4)]]
    cascade.forget(2)
    assert first.forgotten == second.forgotten == third.forgotten == [2]


def test_control_says_how_deep_each_member_may_go():
    first, second = Scripted("first", {}), Scripted("second", {2: Draft.chain([7], "second")})
    limits = {"first": {1: 0, 2: 3, 3: 9}, "second": {1: 2, 2: 4, 3: 0}}
    cascade = Cascade(
        [first, second], lambda name, keys, depths: [min(limits[name][k], d) for k, d in zip(keys, depths)]
    )
    drafts = cascade.propose([view_of([0], key=key, depth=4) for key in (1, 2, 3)])
    assert first.calls == [[(2, 3), (3, 4)]]
    assert second.calls == [[(1, 2), (2, 4)]]
    assert [draft and draft.token_ids for draft in drafts] == [None, (7,), None]


def test_a_forced_chain_is_extended_by_what_follows_it_in_the_text():
    members = [ForcedProposer(), Scripted("weights", {}), SuffixProposer(), NgramProposer()]
    text = [1, 2, 3, 4, 5, 6, 9, 1]
    draft = Cascade(members).propose([view_of(text, depth=5, forced=lambda after: [2, 3][len(after) :])])[0]
    assert draft.token_ids == (2, 3, 4, 5, 6)
    assert draft.sources == ("forced",) * 2 + ("suffix",) * 3
    assert draft.confidences[:2] == (1.0, 1.0)
    assert 0 < draft.confidences[2] < 1
    assert draft.is_chain
    assert members[1].calls == [], "what has weights drafts from the root only"


def test_a_forced_chain_is_cut_to_what_is_wanted():
    def forced(after):
        return list(range(10))[len(after) :]

    cascade = Cascade([ForcedProposer(), PredictionProposer()])
    assert cascade.propose([view_of([1], depth=3, forced=forced)])[0].token_ids == (0, 1, 2)
    assert cascade.propose([view_of([1], depth=8, nodes=2, forced=forced)])[0].token_ids == (0, 1)
    longer = cascade.propose([view_of([1], depth=12, num_prompt_tokens=1, prediction=range(20), forced=forced)])[0]
    assert longer.token_ids == tuple(range(12))
    assert set(longer.sources[10:]) == {"prediction"}
    assert cascade.propose([view_of([1], forced=lambda after: [])]) == [None]
