"""The protocol of proposers: they see committed tokens and return drafts; the engine needs nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from decodex.spec.draft import Draft

__all__ = ["Proposer", "ProposerOptions", "ProposerView", "TreeShape"]


@dataclass(frozen=True)
class TreeShape:
    """How a draft may branch. `widths`: children of every node by depth (static); else grown by path probability."""

    widths: tuple[int, ...] = ()
    num_children: int = 4  # of a node that is expanded (grown trees)
    num_expanded: int = 4  # nodes that are expanded at each depth (grown trees)
    max_nodes: int = 16


@dataclass(frozen=True)
class ProposerOptions:
    """What a request, or else the engine, asks of proposers."""

    num_speculative_tokens: int = 5  # the deepest draft
    prompt_lookup_max: int = 4  # longest n-gram that is looked up
    prompt_lookup_min: int = 2
    tree: TreeShape | None = None  # None: chains
    suffix_corpus: bool = False  # look into the earlier outputs of other requests too


@dataclass(frozen=True)
class ProposerView:
    """One sequence as a proposer sees it after a commit: n = len(token_ids), x_{n-1} has no KV yet."""

    key: int  # of the sequence; never reused
    slot: int  # its row of the block table while it runs
    token_ids: Sequence[int]  # prompt and committed output
    num_prompt_tokens: int
    max_depth: int  # 0: nothing is wanted, but proposers with KV of their own bring it up to date
    max_nodes: int
    options: ProposerOptions = field(default_factory=ProposerOptions)
    prediction: tuple[int, ...] = ()  # what the caller expects of the output
    forced: Callable[[Sequence[int]], list[int]] | None = None  # what a grammar forces after these draft tokens
    start: int = 0  # first position that the target has computed in this step
    rows: Sequence[int] = ()  # rows of the step's hidden states, for positions start, start + 1, ...


class Proposer(Protocol):
    """Guesses the next tokens of sequences that will decode in the next step."""

    name: str

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A draft for each view, or None; wrong guesses cost time, never output."""
        ...

    def forget(self, key: int) -> None:
        """The sequence is over; a key that is not known is fine."""
        ...
