"""Logits rows to tokens (steps 6 to 8 of the row pipeline) and raw log-probabilities; owned by the kernels room.

The kept set of every truncation is exact: order (logit descending, id ascending), softmax mass in int64 fixed point,
so neither batch mates, threads nor the body can move it. Step 7 in its order, each over the survivors so far, with
the softmax over these; ties go to the lower id and at least one token survives:

dynatemp_range   before everything: T' = T - range .. T + range by (H / log(count))^exponent over the finite logits
top_n_sigma      logit >= maximum - n * standard deviation of the finite logits
min_p            p >= min_p * the largest p
top_k            the k most likely
typical_p        the tokens with -log p nearest to H that have this mass
epsilon_cutoff   p >= epsilon, and the most likely
eta_cutoff       p >= min(eta, sqrt(eta) * exp(-H)), and the most likely
top_p            the most likely that have this mass
xtc              with probability xtc_probability: of those with p >= threshold only the least likely
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from decodex.kernels.backend import cpu_library, gpu_body
from decodex.kernels.checks import describe
from decodex.kernels.penalties import check_logits_
from decodex.kernels.reference import sampling as reference
from decodex.kernels.rng import PURPOSE_SAMPLE, check_streams, pack_streams
from decodex.kernels.sampling_rows import RareRows, SamplingRows, check_rows

__all__ = [
    "RareRows",
    "SamplingRows",
    "TopLogprobs",
    "argmax",
    "gumbel_argmax",
    "sample_rows",
    "sample_scored",
    "top_logprobs",
    "truncate_",
]


class TopLogprobs(NamedTuple):
    """Raw log-probabilities of L rows; with chosen tokens these are the last column, at index n."""

    values: Tensor  # [L, n (+ 1)] fp32, descending over the first n
    ids: Tensor  # [L, n (+ 1)] int64
    ranks: Tensor | None  # [L] int64 of the chosen tokens, from 1, in order (logit descending, id ascending)


def _check_logits(logits: Tensor) -> Tensor:
    if logits.ndim != 2 or logits.dtype != torch.float32 or logits.shape[1] == 0:
        raise ValueError(f"logits: expected fp32 [L, V], got {describe(logits)}")
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _library(logits: Tensor) -> Any:
    return cpu_library() if logits.device.type == "cpu" else None


def _torch_or_gpu(logits: Tensor, rows: SamplingRows | None = None) -> Any:
    """The bodies for where no library runs; rare truncations have none in Triton."""
    return (gpu_body("sampling", logits) if rows is None or rows.rare is None else None) or reference


def _check_status(status: int, vocab_size: int) -> None:
    if status:
        raise MemoryError(f"no memory for the candidates of {vocab_size} logits")


def _contiguous(rows: SamplingRows) -> list[Tensor]:
    """What the compiled bodies read, to be kept alive until the call is over: [L] each, rare [8, L], exempt [E]."""
    common = [rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seeds, rows.positions]
    held = [tensor.contiguous() for tensor in common]
    if rows.rare is not None:
        held += [torch.stack(rows.rare[:-1]), rows.rare.exempt.contiguous()]
    return held


def _pointers(held: list[Tensor]) -> list[int]:
    pointers = [tensor.data_ptr() for tensor in held]
    return [*pointers, held[-1].shape[0]] if len(held) == 8 else [*pointers, 0, 0, 0]


def sample_rows(logits: Tensor, rows: SamplingRows, ids: Tensor | None = None) -> Tensor:
    """Columns [L] int64 drawn from logits [L, V] fp32 (not modified): token ids, where `ids` does not name others.

    -1 for a row with NaN, +inf, nothing above -inf or nothing kept. `ids` [V] int64, ascending: the tokens of the
    columns; what is drawn is what would be drawn if all other tokens were -inf (not with rare truncations). Raises
    ValueError naming a wrong field.
    """
    return _sample(logits, rows, ids, False)[0]


def sample_scored(logits: Tensor, rows: SamplingRows, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`sample_rows`, and the log-softmax [L] fp32 of the drawn over the logits as they are (NaN where it is -1)."""
    columns, log_probs = _sample(logits, rows, ids, True)
    assert log_probs is not None
    return columns, log_probs


def _sample(logits: Tensor, rows: SamplingRows, ids: Tensor | None, is_scored: bool) -> tuple[Tensor, Tensor | None]:
    logits = _check_logits(logits)
    num_rows, vocab_size = logits.shape
    check_rows(rows, num_rows)
    if ids is not None:
        _check_ids(ids, rows, vocab_size)
    columns = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    log_probs = torch.empty(num_rows, dtype=torch.float32, device=logits.device) if is_scored else None
    if num_rows == 0:
        return columns, log_probs
    library = _library(logits)
    if library is None:
        columns = (
            _torch_or_gpu(logits, rows).sample_rows(logits, rows)
            if ids is None
            else reference.sample_rows(logits, rows, ids)
        )
        if is_scored:
            found = top_logprobs(logits, 0, columns.clamp(min=0)).values[:, 0]
            log_probs = torch.where(columns < 0, torch.nan, found)
        return columns, log_probs
    held = _contiguous(rows)
    status = library.sample_rows(
        logits.data_ptr(),
        logits.stride(0),
        num_rows,
        vocab_size,
        *_pointers(held),
        0 if ids is None else ids.data_ptr(),
        columns.data_ptr(),
        0 if log_probs is None else log_probs.data_ptr(),
        torch.get_num_threads(),
    )
    _check_status(status, vocab_size)
    return columns, log_probs


def _check_ids(ids: Tensor, rows: SamplingRows, vocab_size: int) -> None:
    if ids.dtype != torch.int64 or ids.shape != (vocab_size,) or not ids.is_contiguous():
        raise ValueError(f"ids: expected contiguous int64 [{vocab_size}], got {describe(ids)}")
    if rows.rare is not None:
        raise ValueError("ids: not with rare truncations, which look at the whole vocabulary")


def truncate_(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Logits [L, V] fp32 in place to (logit - maximum) / T of the tokens that step 7 keeps and -inf elsewhere.

    T = 0: 0 at the arg-max. Rows for which `sample_rows` gives -1 become -inf. Processed log-probabilities are the
    log-softmax of the result. Returns logits; raises ValueError naming a wrong field.
    """
    check_logits_(logits)
    num_rows, vocab_size = logits.shape
    check_rows(rows, num_rows)
    library = _library(logits)
    if num_rows == 0:
        return logits
    if library is None:
        result: Tensor = _torch_or_gpu(logits, rows).truncate_(logits, rows)
        return result
    held = _contiguous(rows)
    status = library.truncate_rows(
        logits.data_ptr(), logits.stride(0), num_rows, vocab_size, *_pointers(held), torch.get_num_threads()
    )
    _check_status(status, vocab_size)
    return logits


def gumbel_argmax(
    logits: Tensor,
    seeds: Tensor,
    positions: Tensor,
    purpose: int = PURPOSE_SAMPLE,
    windows: Tensor | None = None,
    siblings: Tensor | None = None,
) -> Tensor:
    """Arg-max [L] int64 of (logit - maximum) + Gumbel noise for logits [L, V] fp32: `sample_rows` at T = 1.

    seeds, positions, windows, siblings: [L] int64 (see kernels/rng.py). No truncation; -1 as in `sample_rows`. Raises
    ValueError for other shapes.
    """
    logits = _check_logits(logits)
    num_rows, vocab_size = logits.shape
    check_streams(num_rows, seeds=seeds, positions=positions, windows=windows, siblings=siblings)
    if num_rows == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    streams = pack_streams(windows, siblings)
    library = _library(logits)
    if library is None:
        result: Tensor = _torch_or_gpu(logits).gumbel_argmax(logits, seeds, positions, purpose, streams)
        return result
    seeds, positions = seeds.contiguous(), positions.contiguous()
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    status = library.gumbel_argmax(
        logits.data_ptr(),
        logits.stride(0),
        num_rows,
        vocab_size,
        seeds.data_ptr(),
        positions.data_ptr(),
        0 if streams is None else streams.data_ptr(),
        purpose,
        token_ids.data_ptr(),
        torch.get_num_threads(),
    )
    _check_status(status, vocab_size)
    return token_ids


def argmax(logits: Tensor) -> Tensor:
    """Ids [L] int64 of the largest logits [L, V] fp32, ties to the lower id; -1 for NaN, +inf or nothing above -inf."""
    logits = _check_logits(logits)
    num_rows, vocab_size = logits.shape
    if num_rows == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    library = _library(logits)
    if library is None:
        result: Tensor = _torch_or_gpu(logits).argmax(logits)
        return result
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    status = library.argmax_rows(
        logits.data_ptr(), logits.stride(0), num_rows, vocab_size, token_ids.data_ptr(), torch.get_num_threads()
    )
    _check_status(status, vocab_size)
    return token_ids


def _check_chosen(is_fine: bool, token_ids: Tensor | None, vocab_size: int) -> None:
    if not is_fine and token_ids is not None:
        raise ValueError(f"token_ids: expected 0..{vocab_size - 1}, got {token_ids.tolist()}")


def _native_top_logprobs(logits: Tensor, n: int, token_ids: Tensor | None) -> TopLogprobs:
    num_rows, vocab_size = logits.shape
    width = n + (token_ids is not None)
    values = torch.empty(num_rows, width, dtype=torch.float32, device=logits.device)
    ids = torch.empty(num_rows, width, dtype=torch.int64, device=logits.device)
    token_ids = None if token_ids is None else token_ids.contiguous()
    ranks = None if token_ids is None else torch.empty_like(token_ids)
    status = cpu_library().top_tokens(
        logits.data_ptr(),
        logits.stride(0),
        num_rows,
        vocab_size,
        n,
        0 if token_ids is None else token_ids.data_ptr(),
        values.data_ptr(),
        ids.data_ptr(),
        0 if ranks is None else ranks.data_ptr(),
        torch.get_num_threads(),
    )
    _check_chosen(status != 2, token_ids, vocab_size)
    _check_status(status, vocab_size)
    return TopLogprobs(values, ids, ranks)


def top_logprobs(logits: Tensor, n: int, token_ids: Tensor | None = None) -> TopLogprobs:
    """Raw log-softmax of the n best tokens (0 <= n <= V) of each row of logits [L, V] fp32, and of token_ids [L] int64.

    Same bits for a row whatever its batch mates; NaN for a row with NaN, +inf or nothing above -inf. Raises ValueError
    for another n or ids outside the vocabulary (these are not looked at on a GPU)."""
    logits = _check_logits(logits)
    num_rows, vocab_size = logits.shape
    if not 0 <= n <= vocab_size:
        raise ValueError(f"n: expected 0..{vocab_size}, got {n}")
    if token_ids is not None and (token_ids.dtype != torch.int64 or token_ids.shape != (num_rows,)):
        raise ValueError(f"token_ids: expected int64 [{num_rows}], got {describe(token_ids)}")
    if num_rows == 0:
        width = n + (token_ids is not None)
        ids = torch.empty(0, width, dtype=torch.int64, device=logits.device)
        return TopLogprobs(torch.empty(0, width, dtype=torch.float32, device=logits.device), ids, token_ids)
    if _library(logits) is not None:
        return _native_top_logprobs(logits, n, token_ids)
    if token_ids is not None and not logits.is_cuda:
        _check_chosen(0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size, token_ids, vocab_size)
    gpu = gpu_body("sampling", logits)
    if gpu is not None:
        ids, ranks, maximum, mass = gpu.top_tokens(logits, n, token_ids)
    else:
        ids, ranks = reference.top_tokens(logits, n, token_ids)
        maximum, mass = reference.softmax_mass(logits)
    if token_ids is not None:
        ids = torch.cat([ids, token_ids[:, None]], dim=1)
    log_mass = torch.log(mass.double() / reference.MASS_UNIT)  # NaN for a row without a finite maximum
    values = (logits.gather(1, ids).double() - maximum[:, None].double()) - log_mass[:, None]
    return TopLogprobs(values.float(), ids, ranks)
