"""Logits rows to tokens (steps 6 to 8 of the row pipeline) and raw log-probabilities; owned by the kernels room.

The kept set of every truncation is exact: order (logit descending, id ascending), softmax mass in int64 fixed point,
so neither batch mates, threads nor the body can move it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from decodex.kernels.backend import cpu_library
from decodex.kernels.reference import sampling as reference
from decodex.kernels.sampling_rows import RareRows, SamplingRows, check_rows

__all__ = ["RareRows", "SamplingRows", "TopLogprobs", "sample_rows", "top_logprobs"]


class TopLogprobs(NamedTuple):
    """Raw log-probabilities of L rows; with chosen tokens these are the last column, at index n."""

    values: Tensor  # [L, n (+ 1)] fp32, descending over the first n
    ids: Tensor  # [L, n (+ 1)] int64
    ranks: Tensor | None  # [L] int64 of the chosen tokens, from 1, in order (logit descending, id ascending)


def _check_logits(logits: Tensor) -> Tensor:
    if logits.ndim != 2 or logits.dtype != torch.float32 or logits.shape[1] == 0:
        raise ValueError(f"logits: expected fp32 [L, V], got {logits.dtype} {tuple(logits.shape)}")
    return logits if logits.stride(1) == 1 else logits.contiguous()


def sample_rows(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Tokens [L] int64 drawn from logits [L, V] fp32 (not modified).

    -1 for a row with NaN, +inf, nothing above -inf or nothing kept.
    """
    logits = _check_logits(logits)
    num_rows, vocab_size = logits.shape
    check_rows(rows, num_rows)
    if num_rows == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    library = cpu_library() if logits.device.type == "cpu" and rows.rare is None else None
    if library is None:
        return reference.sample_rows(logits, rows)
    parameters = (rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seeds, rows.positions)
    held = [tensor.contiguous() for tensor in parameters]  # alive until the call is over
    token_ids = torch.empty(num_rows, dtype=torch.int64)
    status = library.sample_rows(
        logits.data_ptr(),
        logits.stride(0),
        num_rows,
        vocab_size,
        *[tensor.data_ptr() for tensor in held],
        token_ids.data_ptr(),
        torch.get_num_threads(),
    )
    if status:
        raise MemoryError(f"sample_rows: no memory for the candidates of {vocab_size} logits")
    return token_ids


def _log_normalizers(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Row maximum [L] fp32 and log of the softmax mass above it [L] fp64."""
    library = cpu_library() if logits.device.type == "cpu" else None
    if library is None:
        maximum, mass = reference.softmax_mass(logits)
    else:
        num_rows, vocab_size = logits.shape
        maximum, mass = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
        status = library.softmax_mass(
            logits.data_ptr(),
            logits.stride(0),
            num_rows,
            vocab_size,
            maximum.data_ptr(),
            mass.data_ptr(),
            torch.get_num_threads(),
        )
        if status:
            raise MemoryError(f"softmax_mass: no memory for {vocab_size} logits")
    return maximum, torch.log(mass.double() / reference.MASS_UNIT)  # NaN for a row without a finite maximum


def _top_ids(logits: Tensor, n: int) -> Tensor:
    """Ids [L, n] of the n largest logits, ties to the lower id, without a sort of the rows."""
    values, ids = torch.topk(logits, n, dim=1)
    cut = values[:, -1:]
    for row in ((logits >= cut).sum(1) > n).nonzero().flatten().tolist():  # ties across the cut: lowest ids
        is_above = values[row] > cut[row]
        num_tied = n - int(is_above.sum())
        tied = (logits[row] == cut[row]).nonzero().flatten()[:num_tied]
        ids[row] = torch.cat([ids[row][is_above], tied])
    ids = ids.sort(dim=1).values
    order = logits.gather(1, ids).sort(dim=1, descending=True, stable=True).indices
    return ids.gather(1, order)


def top_logprobs(logits: Tensor, n: int, token_ids: Tensor | None = None) -> TopLogprobs:
    """Raw log-softmax of the n best tokens (0 <= n <= V) of each row of logits [L, V] fp32, and of token_ids [L] int64.

    Same bits for a row whatever its batch mates. Raises ValueError for another n."""
    logits = _check_logits(logits)
    num_rows, vocab_size = logits.shape
    if not 0 <= n <= vocab_size:
        raise ValueError(f"n: expected 0..{vocab_size}, got {n}")
    ids = _top_ids(logits, n) if n and num_rows else torch.empty(num_rows, n, dtype=torch.int64, device=logits.device)
    ranks = None
    if token_ids is not None:
        if token_ids.dtype != torch.int64 or token_ids.shape != (num_rows,):
            raise ValueError(f"token_ids: expected int64 [{num_rows}], got {token_ids.dtype} {tuple(token_ids.shape)}")
        chosen = token_ids[:, None]
        logit = logits.gather(1, chosen)
        before = torch.arange(vocab_size, device=logits.device) < chosen
        ranks = ((logits > logit) | ((logits == logit) & before)).sum(1) + 1
        ids = torch.cat([ids, chosen], dim=1)
    maximum, log_mass = _log_normalizers(logits)
    values = (logits.gather(1, ids).double() - maximum[:, None].double()) - log_mass[:, None]
    return TopLogprobs(values.float(), ids, ranks)
