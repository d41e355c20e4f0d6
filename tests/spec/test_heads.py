"""Heads against plain torch: every public layout, over steps with rejected drafts, chains and trees, batched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from head_fakes import LAYOUTS, SHAPES, Run, TopTokens, states_of
from head_oracle import Oracle
from torch import Tensor

from decodex.spec.proposer import ProposerOptions, TreeShape

pytestmark = pytest.mark.usefixtures("one_thread")


def check(run: Run, chooser: TopTokens, oracle: Oracle, token_map: Tensor | None) -> int:
    """All logits that the chooser saw, and the drafts that became of them; how many rows that was."""
    for (view, path), logits in chooser.seen.items():
        tokens = run.sequences[view]
        expected = oracle.logits(tokens, states_of(tokens, run.proposer.taps), path)
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)
    for view, draft in enumerate(run.drafts):
        assert draft is not None
        assert set(draft.sources) == {run.proposer.name}
        paths = [tuple(draft.token_ids[node] for node in path) for path in draft.paths]
        assert len(set(paths)) == len(paths)
        if is_grown(shape := run.options[view].tree):
            assert set(paths) == grown(chooser, view, shape, token_map)
        for path, score in zip(paths, draft.confidences, strict=True):
            scores, ids = chooser.seen[view, path[:-1]].softmax(-1).sort(descending=True)
            place = (ids if token_map is None else token_map[ids]).tolist().index(path[-1])
            assert score == pytest.approx(float(scores[place]))
    return len(chooser.seen)


def is_grown(shape: TreeShape | None) -> bool:
    return shape is not None and not shape.widths


def grown(chooser: TopTokens, view: int, shape: TreeShape, token_map: Tensor | None) -> set[tuple[int, ...]]:
    """The tree as the paper has it; a path that the chooser never saw can only be one that could not be kept."""
    found: dict[tuple[int, ...], float] = {}
    level: dict[tuple[int, ...], float] = {(): 1.0}
    while level and max(map(len, level)) < 4:
        children = {}
        for path, reach in level.items():
            if (view, path) in chooser.seen:
                scores, ids = chooser.seen[view, path].softmax(-1).topk(shape.num_children)
                ids = ids if token_map is None else token_map[ids]
                children |= {(*path, int(i)): reach * float(s) for s, i in zip(scores, ids)}
            else:
                assert reach <= sorted(found.values())[-shape.max_nodes]
        found |= children
        level = dict(sorted(children.items(), key=lambda item: -item[1])[: shape.num_expanded])
    return set(sorted(found, key=lambda path: -found[path])[: shape.max_nodes])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_proposes_what_plain_torch_proposes(layout: str, shape: str, tmp_path: Path) -> None:
    oracle = LAYOUTS[layout].oracle
    run = Run(LAYOUTS[layout].proposer(tmp_path))
    run.options = [ProposerOptions(num_speculative_tokens=4, tree=SHAPES[shape])] * 3
    rows = check(run, run.prefill(4), oracle, run.proposer._head.token_map)
    for _ in range(3):
        rows += check(run, run.decode(4), oracle, run.proposer._head.token_map)
    assert shape == "grown" or rows == 4 * 3 * {"chain": 4, "static": 10}[shape]


def test_shapes_may_differ_within_a_batch(tmp_path: Path) -> None:
    oracle = LAYOUTS["eagle3"].oracle
    run = Run(LAYOUTS["eagle3"].proposer(tmp_path), seed=5)
    run.options = [ProposerOptions(num_speculative_tokens=3, tree=shape) for shape in SHAPES.values()]
    for step in range(4):
        chooser = run.decode(4) if step else run.prefill(4)
        check(run, chooser, oracle, run.proposer._head.token_map)
        assert chooser.num_calls == 3
        chain, static, grown = run.drafts
        assert chain is not None
        assert chain.is_chain
        assert len(chain) == 3
        assert static is not None
        assert static.parents == (-1, -1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5)
        assert grown is not None
        assert len(grown) == 9
