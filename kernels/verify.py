"""Verification that keeps the target's law but not its tokens: rejection and block, and draws of proposals.

The verdicts are pure functions of the laws, the drafts and the coins; all noise comes from kernels/rng.py. Laws are
probabilities, fp32, one row after the root of a draft and one after each of its nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decodex.kernels.backend import cpu_library, gpu_body
from decodex.kernels.checks import describe
from decodex.kernels.reference import verify as reference
from decodex.kernels.rng import PURPOSE_PROPOSAL
from decodex.kernels.sampling import gumbel_argmax

__all__ = ["FlatDrafts", "Verdicts", "draw_proposals", "log_law", "verify_drafts"]


class FlatDrafts(NamedTuple):
    """The drafts of B sequences one after another, on the host: N nodes in all, each after its parent."""

    starts: Sequence[int]  # [B] row of the target's law after each root; those after the nodes follow
    cu_nodes: Sequence[int]  # [B + 1] prefix sums of the drafts' lengths
    parents: Sequence[int]  # [N] node of the same draft, -1 the root; siblings in the order they were drawn
    token_ids: Sequence[int]  # [N]
    laws: Sequence[Tensor | None]  # [B] of [K, V] fp32: what each node was drawn from; None: point masses


class Verdicts(NamedTuple):
    """What verification leaves."""

    is_accepted: Tensor  # [N] bool: a path from the root
    num_accepted: Tensor  # [B] int64
    log_left: Tensor  # [B, V] fp32: logarithm, up to a constant, of the law of the token after the accepted ones


def _check_laws(name: str, laws: Tensor) -> Tensor:
    if laws.ndim != 2 or laws.dtype != torch.float32 or laws.shape[1] == 0:
        raise ValueError(f"{name}: expected fp32 [L, V], got {describe(laws)}")
    return laws if laws.stride(1) == 1 else laws.contiguous()


def _body(tensor: Tensor) -> Any:
    return gpu_body("verify", tensor) or reference


def log_law(laws: Tensor) -> Tensor:
    """Logarithms [L, V] of probabilities [L, V] fp32: -inf for NaN and below 2^-126; the same bits for every batch."""
    laws = _check_laws("laws", laws)
    library = cpu_library() if laws.is_cpu else None
    if library is None:
        logs: Tensor = _body(laws).log_law(laws)
        return logs
    num_rows, vocab_size = laws.shape
    out = torch.empty(num_rows, vocab_size, dtype=torch.float32)
    library.log_law(laws.data_ptr(), laws.stride(0), num_rows, vocab_size, out.data_ptr(), torch.get_num_threads())
    return out


def _check_drafts(laws: Tensor, drafts: FlatDrafts, coins: Tensor) -> list[Tensor | None]:
    """The draft laws with contiguous columns; ValueError for what would be read out of bounds."""
    num_rows, vocab_size = laws.shape
    num_seqs, num_nodes = len(drafts.starts), len(drafts.parents)
    if len(drafts.cu_nodes) != num_seqs + 1 or len(drafts.laws) != num_seqs or drafts.cu_nodes[-1] != num_nodes:
        raise ValueError(f"drafts: expected {num_seqs} drafts of {num_nodes} nodes, got cu_nodes {drafts.cu_nodes}")
    if coins.dtype != torch.float32 or coins.shape != (num_nodes,):
        raise ValueError(f"coins: expected float32 [{num_nodes}], got {describe(coins)}")
    if len(drafts.token_ids) != num_nodes or not all(0 <= token < vocab_size for token in drafts.token_ids):
        raise ValueError(f"token_ids: expected {num_nodes} of 0..{vocab_size - 1}, got {list(drafts.token_ids)}")
    checked: list[Tensor | None] = []
    for start, first, end, law in zip(drafts.starts, drafts.cu_nodes, drafts.cu_nodes[1:], drafts.laws):
        if not 0 <= start <= num_rows - 1 - (end - first):
            raise ValueError(f"starts: expected {end - first + 1} of {num_rows} rows, got them from {start} on")
        if not all(-1 <= parent < node for node, parent in enumerate(drafts.parents[first:end])):
            raise ValueError(f"parents: expected earlier nodes, got {list(drafts.parents[first:end])}")
        if law is not None and (law.shape != (end - first, vocab_size) or law.device != laws.device):
            raise ValueError(f"draft laws: expected [{end - first}, {vocab_size}], got {describe(law)}")
        checked.append(None if law is None else _check_laws("draft laws", law))
    return checked


def law_addresses(drafts: FlatDrafts, laws: Sequence[Tensor | None]) -> list[int]:
    """Where the law of each node is, [N]; 0 for a point mass."""
    addresses: list[int] = []
    for first, end, law in zip(drafts.cu_nodes, drafts.cu_nodes[1:], laws):
        begin, stride = (0, 0) if law is None else (law.data_ptr(), law.stride(0) * 4)
        addresses += range(begin, begin + stride * (end - first), stride) if stride else [begin] * (end - first)
    return addresses


def verify_drafts(laws: Tensor, drafts: FlatDrafts, coins: Tensor, is_block: bool = False) -> Verdicts:
    """Which drafts are kept, given the target's laws [R, V] fp32 and a coin in (0, 1) of each node, [N] fp32.

    Rejection (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318; recursive among siblings as
    drawn without replacement), or block verification of chains (Sun et al. 2024, arXiv 2403.10444). A token drawn from
    the law left keeps the joint law of emitted tokens at the target's. NaN counts as 0; a law without any token left
    gives a `log_left` of -inf. Raises ValueError for shapes that don't fit, and for a tree under block.
    """
    laws = _check_laws("laws", laws)
    held = _check_drafts(laws, drafts, coins)
    if is_block and any(
        parent != node - 1
        for first, end in zip(drafts.cu_nodes, drafts.cu_nodes[1:])
        for node, parent in enumerate(drafts.parents[first:end])
    ):
        raise ValueError("drafts: expected chains for block verification, got a tree")
    library = cpu_library() if laws.is_cpu else None
    if library is None and gpu_body("verify", laws) is None:
        return Verdicts(*reference.verify_drafts(laws, *drafts[:4], held, coins, is_block))
    num_seqs, num_nodes, vocab_size = len(drafts.starts), len(drafts.parents), laws.shape[1]
    addresses = law_addresses(drafts, held)
    host = [*drafts.starts, *drafts.cu_nodes, *drafts.parents, *drafts.token_ids, *addresses]
    sizes = [num_seqs, num_seqs + 1, num_nodes, num_nodes, num_nodes]
    facts = torch.split(torch.tensor(host, dtype=torch.int64).to(laws.device), sizes)
    verdicts = Verdicts(
        torch.zeros(num_nodes, dtype=torch.bool, device=laws.device),
        torch.zeros(num_seqs, dtype=torch.int64, device=laws.device),
        torch.empty(num_seqs, vocab_size, dtype=torch.float32, device=laws.device),
    )
    coins = coins.contiguous()
    if library is None:
        _body(laws).verify_drafts(laws, facts, coins, is_block, verdicts)
        return verdicts
    status = library.verify_drafts(
        laws.data_ptr(),
        laws.stride(0),
        vocab_size,
        num_seqs,
        *(fact.data_ptr() for fact in facts),
        coins.data_ptr(),
        is_block,
        *(verdict.data_ptr() for verdict in verdicts),
        torch.get_num_threads(),
    )
    if status:
        raise MemoryError(f"no memory for laws of {vocab_size} tokens")
    return verdicts


def draw_proposals(
    laws: Tensor, seeds: Tensor, positions: Tensor, windows: Tensor, num: int, siblings: Tensor | None = None
) -> Tensor:
    """Ids [R, num] int64 drawn from laws [R, V] fp32 without replacement, in the order drawn; -1 beyond their tokens.

    The `num` largest of log q + Gumbel noise (Kool et al. 2019, arXiv 1903.06059), purpose PROPOSAL. seeds, positions
    (of the tokens drawn), windows (first positions): [R] int64; `siblings` tells apart the rows of a position.
    """
    if num < 1:
        raise ValueError(f"num: expected at least 1, got {num}")
    logs = log_law(laws)
    drawn = torch.full((len(laws), num), -1, dtype=torch.int64, device=laws.device)
    for i in range(min(num, laws.shape[1])):  # the same noise over what is left: faster than all noise and a sort
        if i > 0:
            logs.scatter_(1, drawn[:, i - 1 : i].clamp(min=0), -torch.inf)
        drawn[:, i] = gumbel_argmax(logs, seeds, positions, PURPOSE_PROPOSAL, windows, siblings)
    return drawn
