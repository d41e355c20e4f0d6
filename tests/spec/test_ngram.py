"""Prompt lookup against a search of the whole text at each call."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from proposer_views import view_of

from decodex.spec.ngram import NgramProposer


def searched(text, longest, shortest, size, committed=None):
    """The tokens after the most recent earlier occurrence of the longest n-gram, copied one by one."""
    committed = len(text) if committed is None else committed
    for n in range(longest, shortest - 1, -1):
        for end in range(committed - 1, n - 1, -1):
            if len(text) >= n and text[end - n : end] == text[-n:]:
                copy = list(text)
                for place in range(end, end + size):
                    copy.append(copy[place])
                return tuple(copy[len(text) :])
    return None


@settings(max_examples=60)
@given(st.data())
def test_drafts_are_what_a_search_finds(data):
    """Two sequences that grow by a few tokens, are preempted to a shorter text and forgotten now and then."""
    proposer = NgramProposer()
    longest = data.draw(st.integers(1, 5))
    shortest = data.draw(st.integers(1, longest))
    texts = [data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=12)) for _ in range(2)]
    for _ in range(data.draw(st.integers(1, 8))):
        key = data.draw(st.integers(0, 1))
        event = data.draw(st.sampled_from(["grow", "grow", "grow", "shrink", "forget"]))
        if event == "grow":
            texts[key] += data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        elif event == "shrink":
            del texts[key][data.draw(st.integers(1, len(texts[key]))) :]
        else:
            proposer.forget(key)
        depth = data.draw(st.integers(1, 7))
        options = {"prompt_lookup_max": longest, "prompt_lookup_min": shortest}
        drafts = proposer.propose([view_of(texts[k], key=k, depth=depth, **options) for k in range(2)])
        for text, draft in zip(texts, drafts):
            expected = searched(text, longest, shortest, depth)
            assert (draft and draft.token_ids) == expected
            assert draft is None or (draft.is_chain and set(draft.sources) == {"ngram"})


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.lists(st.integers(0, 2), max_size=4), st.integers(1, 9))
def test_draft_tokens_count_as_text_but_are_not_kept(text, drafted, depth):
    proposer = NgramProposer()
    after = proposer.propose_after(view_of(text, depth=depth), drafted)
    assert (after and after.token_ids) == searched(text + drafted, 4, 2, depth, committed=len(text))
    again = proposer.propose([view_of(text, depth=depth)])[0]
    assert (again and again.token_ids) == searched(text, 4, 2, depth)


def test_a_copy_that_reaches_the_end_goes_on_in_itself():
    draft = NgramProposer().propose([view_of([1, 2, 3, 1, 2, 3, 1, 2], depth=7)])[0]
    assert draft.token_ids == (3, 1, 2, 3, 1, 2, 3)


def test_options_of_a_sequence_may_change():
    proposer = NgramProposer()
    text = [1, 2, 9, 2, 3, 1, 2]
    assert proposer.propose([view_of(text, depth=1)])[0].token_ids == (9,)
    assert proposer.propose([view_of(text, depth=1, prompt_lookup_min=3)])[0] is None
    assert proposer.propose([view_of(text, depth=1, prompt_lookup_max=1, prompt_lookup_min=1)])[0].token_ids == (3,)


def test_nothing_is_wanted():
    assert NgramProposer().propose([view_of([1, 1, 1], depth=0), view_of([1, 1, 1], nodes=0)]) == [None, None]
