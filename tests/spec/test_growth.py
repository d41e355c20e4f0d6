"""How drafts grow: limits of depth, nodes and KV places, rows without a choice, laws, the order of grown trees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes import VOCAB, FakeModel, hash_logits
from head_fakes import Run

from decodex.heads import draft_forward
from decodex.spec.draft_model import DraftModel
from decodex.spec.growth import Growth
from decodex.spec.head_proposer import HeadProposer
from decodex.spec.proposer import ProposerOptions, ProposerView, TreeShape
from decodex.spec.target import Choices

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPES = [
    None,
    TreeShape(widths=(1, 1, 1, 1), max_nodes=4),
    TreeShape(widths=(4, 2, 2, 1), max_nodes=44),
    TreeShape(widths=(2, 2), max_nodes=5),
    TreeShape(num_children=3, num_expanded=2, max_nodes=7),
    TreeShape(num_children=1, num_expanded=4, max_nodes=9),
    TreeShape(num_children=5, num_expanded=5, max_nodes=40),
]


def view(shape: TreeShape | None, max_depth: int = 4, max_nodes: int = 64, num_tokens: int = 4) -> ProposerView:
    options = ProposerOptions(num_speculative_tokens=num_tokens, tree=shape)
    return ProposerView(1, 0, [1, 2], 1, max_depth, max_nodes, options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("max_nodes", [1, 3, 6, 64])
@pytest.mark.parametrize("max_depth", [1, 3, 9])
def test_limits_hold_and_nodes_have_their_parents(shape: TreeShape | None, max_nodes: int, max_depth: int) -> None:
    rng = np.random.default_rng(max_nodes + 10 * max_depth)
    for _ in range(5):
        growth = Growth(0, view(shape, max_depth, max_nodes))
        depth = 0
        while growth.frontier:
            assert growth.num_entries <= max_nodes
            width = growth.width(depth)
            counts = [int(rng.integers(0, width + 1)) for _ in growth.frontier]
            growth.add(
                depth,
                Choices(
                    [rng.permutation(50)[:count].tolist() for count in counts],
                    [sorted(rng.uniform(0, 1, count), reverse=True) for count in counts],
                ),
                0,
            )
            depth += 1
        draft = growth.draft("me")
        assert depth <= min(max_depth, 4)
        if draft is not None:  # whose constructor looks at parents
            assert 0 < len(draft) <= max_nodes if shape is None else len(draft) <= min(max_nodes, shape.max_nodes)
            assert max(map(len, draft.paths)) <= min(max_depth, 4)
            assert len(draft.confidences) == len(draft.sources) == len(draft)


def test_a_grown_tree_keeps_the_most_probable_paths() -> None:
    growth = Growth(0, view(TreeShape(num_children=2, num_expanded=1, max_nodes=4)))
    growth.add(0, Choices([[5, 6]], [[0.6, 0.4]]), 0)
    assert growth.frontier == [0]
    growth.add(1, Choices([[9], [7, 8]], [[1.0], [0.5, 0.4]]), 1)  # row 0 is another view's
    growth.add(2, Choices([[1, 2]], [[0.9, 0.1]]), 0)
    assert growth.frontier == []  # a child of the 0.27 can't be among the four best
    draft = growth.draft("me")
    assert draft is not None  # kept: 0.6, 0.4, 0.3, 0.27; not: 0.24, 0.03
    assert (draft.token_ids, draft.parents) == ((5, 6, 7, 1), (-1, -1, 0, 2))
    assert draft.confidences == (0.6, 0.4, 0.5, 0.9)


def test_a_node_has_the_law_that_it_and_its_siblings_were_drawn_from() -> None:
    growth = Growth(0, view(TreeShape(widths=(2, 1), max_nodes=4)))
    laws = torch.rand(3, 10)
    growth.add(0, Choices([[], [3, 4]], [[], [0.5, 0.2]], laws[:2]), 1)
    growth.add(1, Choices([[5], [6]], [[0.1], [0.1]], laws[1:]), 0)
    draft = growth.draft("me")
    assert draft is not None
    assert draft.laws is not None
    torch.testing.assert_close(draft.laws, laws[[1, 1, 1, 2]])
    grown = Growth(0, view(TreeShape()))
    with pytest.raises(ValueError, match="need fixed widths"):
        grown.add(0, Choices([[3]], [[0.5]], laws[:1]), 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_without_a_choice_end_their_branch_alone(shape: TreeShape | None) -> None:
    """The fake model would notice an entry at a wrong place."""
    model = FakeModel(VOCAB)
    run = Run(
        HeadProposer("draft_model", DraftModel(draft_forward(model), [(1, 1, 1)], model.max_position)), vocab=VOCAB
    )
    run.options = [ProposerOptions(num_speculative_tokens=4, tree=shape)] * 3
    rng = np.random.default_rng(4)

    def choose(logits, views, paths, width, token_map):
        for row, (index, path) in enumerate(zip(views, paths, strict=True)):
            expected = torch.from_numpy(hash_logits([*run.sequences[index], *path], VOCAB))
            torch.testing.assert_close(logits[row], expected)
        counts = [int(rng.integers(0, width + 1)) if rng.random() < 0.6 else width for _ in views]
        ids = logits.topk(width).indices.tolist()
        return Choices([row[:n] for row, n in zip(ids, counts)], [[0.5] * n for n in counts])

    run.choose = choose
    sizes = []
    for step in range(6):
        run.decode(4) if step else run.prefill(4)
        sizes += [len(draft) if draft is not None else 0 for draft in run.drafts]
    assert len(set(sizes)) > 1


@pytest.mark.parametrize(("depth", "nodes", "expected"), [(2, 64, 2), (64, 2, 2), (64, 64, 4)])
def test_a_chain_is_as_deep_as_is_allowed(depth: int, nodes: int, expected: int) -> None:
    growth = Growth(0, view(None, depth, nodes))
    level = 0
    while growth.frontier:
        growth.add(level, Choices([[level]], [[0.5]]), 0)
        level += 1
    draft = growth.draft("me")
    assert draft is not None
    assert draft.is_chain
    assert draft.token_ids == tuple(range(expected))
