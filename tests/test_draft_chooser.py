"""Draft tokens from logits: in the order in which the target's own step would choose them, by float64 noise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodex.draft_chooser import DraftChooser, _best, _chosen
from decodex.kernels.reference import rng
from decodex.kernels.sampling import RareRows, SamplingRows, sample_rows, truncate_
from decodex.params import SamplingParams
from decodex.table import RequestTable

V = 40


def rows_of(temperatures: list[float], top_p: float, top_k: int, xtc: float) -> SamplingRows:
    size = len(temperatures)

    def all_of(value: float) -> torch.Tensor:
        return torch.full((size,), value)

    off = [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]  # of the rare truncations before XTC
    exempt = torch.zeros(0, dtype=torch.int64)
    return SamplingRows(
        temperature=torch.tensor(temperatures),
        seeds=torch.arange(size) * 7919 + 5,
        positions=torch.arange(size) + 11,
        top_k=torch.full((size,), top_k, dtype=torch.int32),
        top_p=all_of(top_p),
        min_p=all_of(0.0),
        rare=RareRows(*map(all_of, off), all_of(xtc), all_of(0.1), exempt) if xtc else None,
    )


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.5]), min_size=1, max_size=5),
    st.sampled_from([0.4, 0.9, 1.0]),
    st.sampled_from([0, 2, 7]),
    st.sampled_from([0.0, 0.5]),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
def test_children_are_the_best_of_the_perturbed(temperatures, top_p, top_k, xtc, width, seed):
    logits = torch.randn(len(temperatures), V, generator=torch.Generator().manual_seed(seed)) * 2
    logits[:, ::9] = -torch.inf  # what masks leave out
    rows = rows_of(temperatures, top_p, top_k, xtc)
    choices = _best(logits.clone(), rows, width)
    noise = rng.gumbel_noise(rows.seeds, rows.positions, V, 0).double()
    for row, temperature in enumerate(temperatures):
        kept = truncate_(logits.clone(), rows)[row].double() if temperature else logits[row].double()
        perturbed = kept + noise[row] if temperature else kept
        order = [i for i in perturbed.argsort(descending=True).tolist() if perturbed[i] > -torch.inf][:width]
        assert choices.token_ids[row] == order
        torch.testing.assert_close(
            torch.tensor(choices.scores[row]).double(), kept.softmax(0)[order], rtol=1e-4, atol=1e-6
        )
    assert [tokens[:1] for tokens in choices.token_ids] == [[i] for i in sample_rows(logits, rows).tolist()]
    assert _chosen(logits.clone(), rows).token_ids == [tokens[:1] for tokens in choices.token_ids]


@pytest.mark.parametrize("width", [1, 3])
def test_a_row_without_a_token_has_no_children(width):
    logits = torch.full((2, V), -torch.inf)
    logits[1, 3] = 1.0
    choose = _chosen if width == 1 else lambda logits, rows: _best(logits, rows, width)
    choices = choose(logits, rows_of([1.0, 0.0], 1.0, 0, 0.0))
    assert choices.token_ids == [[], [3]]
    assert choices.scores == [[], [1.0]]


class Inert:
    """A feature that every slot uses, or none, and that changes nothing."""

    def __init__(self, is_used: bool) -> None:
        self.is_used = is_used
        self.num_calls = 0

    def add(self, slot, params):
        return self.is_used

    def apply(self, logits, rows):
        assert logits.shape == (len(rows.slots_host), V)
        self.num_calls += 1

    def remove(self, slot):
        pass


def chooser_of(params: list[SamplingParams], *features: Inert) -> DraftChooser:
    table = RequestTable(len(params), 4, features)
    sequences = [
        SimpleNamespace(
            request=SimpleNamespace(params=one), seed=seed * 31, block_ids=[], token_ids=[1] * (4 + seed),
            num_prompt_tokens=2, slot=-1,
        )
        for seed, one in enumerate(params)
    ]  # fmt: skip
    for seq in sequences:
        table.add(seq)
    chooser = DraftChooser(table, features, V)
    chooser.begin(sequences)
    return chooser


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from([{"temperature": 0}, {"temperature": 1.5}, {"top_p": 0.7}, {"top_k": 3, "min_p": 0.1}]),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_a_reduced_vocabulary_is_chosen_from_as_if_the_rest_were_masked(params, width, is_ascending, seed):
    """Whether the draft logits are spread over all tokens (for features, and for maps in disorder) or not."""
    generator = torch.Generator().manual_seed(seed)
    token_map = torch.randperm(V, generator=generator)[:12]
    if is_ascending:
        token_map = token_map.sort().values
    idle, busy = Inert(False), Inert(True)
    narrow, wide = (chooser_of([SamplingParams(**p) for p in params], feature) for feature in (idle, busy))
    views, paths = [0, *range(len(params))], [(), *[(5, 6)] * len(params)]
    for _ in range(2):
        logits = torch.randn(len(views), 12, generator=generator).mul(3).round()
        logits[0, :4] = -torch.inf
        found, expected = (c.choose(logits.clone(), views, paths, width, token_map) for c in (narrow, wide))
        assert found.token_ids == expected.token_ids
        for mine, theirs in zip(found.scores, expected.scores, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-6)
    assert (idle.num_calls, busy.num_calls) == (0, 2)
    full = torch.full((len(views), V), -torch.inf).index_copy_(1, token_map, logits)
    assert narrow.choose(full, views, paths, width, None).token_ids == found.token_ids


def test_no_draft_is_beyond_the_tokenizer():
    """A head may know tokens that the target's logits have and its tokenizer has not."""
    chooser = chooser_of([SamplingParams(temperature=0)])
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    choices = chooser.choose(logits, [0], [()], 3, torch.tensor([3, 7, V, V + 1]))
    assert choices.token_ids == [[7, 3]]
