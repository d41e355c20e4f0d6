"""Sparse changes of logits rows (steps 2 and 3 of the row pipeline): bias, allow sets, penalties. All in place.

Lists of tokens per row are ragged: row l owns entries cu[l] .. cu[l + 1]. A token is listed at most once per row.
On a GPU lists are not checked (that would wait for the device); ids outside the vocabulary are passed over there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decodex.kernels.backend import cpu_library, gpu_body
from decodex.kernels.checks import describe
from decodex.kernels.reference import penalties as reference

__all__ = ["add_bias_", "apply_penalties_", "keep_only_"]


def check_logits_(logits: Tensor) -> None:
    """ValueError unless logits are float32 [L, V] with contiguous columns (they are changed in place)."""
    if logits.ndim != 2 or logits.dtype is not torch.float32 or logits.shape[1] == 0 or logits.stride(1) != 1:
        raise ValueError(f"logits: expected float32 [L, V] with contiguous columns, got {describe(logits)}")


def _check(name: str, tensor: Tensor, dtype: torch.dtype, length: int, logits: Tensor) -> Tensor:
    if tensor.dtype is not dtype or tensor.shape != (length,) or tensor.device != logits.device:
        expected = f"{str(dtype).removeprefix('torch.')} [{length}] on {logits.device}"
        raise ValueError(f"{name}: expected {expected}, got {describe(tensor)}")
    return tensor.contiguous()


def _check_lists(logits: Tensor, cu: Tensor, token_ids: Tensor, num_lists: int) -> tuple[Tensor, Tensor]:
    if token_ids.ndim != 1:
        raise ValueError(f"token_ids: expected int32 [N], got {describe(token_ids)}")
    cu = _check("cu", cu, torch.int32, num_lists + 1, logits)
    return cu, _check("token_ids", token_ids, torch.int32, token_ids.shape[0], logits)


def _raise_wrong(status: int, vocab_size: int, num_rows: int, num_ids: int) -> None:
    """The error of a body that found a wrong list; nothing was changed."""
    if status == 1:
        raise ValueError(f"cu: expected 0, ascending, up to {num_ids}")
    if status == 2:
        raise ValueError(f"token_ids: expected 0..{vocab_size - 1}")
    if status == 3:
        raise ValueError(f"row_ids: expected 0..{num_rows - 1}")
    if status == 4:
        raise MemoryError(f"no memory for {num_ids} logits")


def apply_penalties_(
    logits: Tensor,
    cu: Tensor,
    token_ids: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> Tensor:
    """Penalties of the listed tokens of every row of logits [L, V] fp32, changed in place and returned.

    cu: [L + 1] int32; token_ids, output_counts: [N] int32 (tokens of prompt and output; how often in the output);
    repetition (off 1), frequency, presence (off 0): [L] fp32. A positive logit is divided by the repetition penalty
    (CTRL, arXiv 1909.05858), any other multiplied; then frequency * count and presence * (count > 0) are subtracted.
    Raises ValueError for wrong shapes, lists or ids.
    """
    check_logits_(logits)
    num_rows, vocab_size = logits.shape
    cu, token_ids = _check_lists(logits, cu, token_ids, num_rows)
    num_ids = token_ids.shape[0]
    output_counts = _check("output_counts", output_counts, torch.int32, num_ids, logits)
    repetition = _check("repetition", repetition, torch.float32, num_rows, logits)
    frequency = _check("frequency", frequency, torch.float32, num_rows, logits)
    presence = _check("presence", presence, torch.float32, num_rows, logits)
    library = cpu_library() if logits.device.type == "cpu" else None
    if library is None:
        args = (cu, token_ids, output_counts, repetition, frequency, presence)
        status = (gpu_body("penalties", logits) or reference).apply_penalties_(logits, *args)
    else:
        status = library.apply_penalties(
            logits.data_ptr(),
            logits.stride(0),
            num_rows,
            vocab_size,
            cu.data_ptr(),
            token_ids.data_ptr(),
            num_ids,
            output_counts.data_ptr(),
            repetition.data_ptr(),
            frequency.data_ptr(),
            presence.data_ptr(),
            torch.get_num_threads(),
        )
    _raise_wrong(status, vocab_size, num_rows, num_ids)
    return logits


def add_bias_(logits: Tensor, cu: Tensor, token_ids: Tensor, values: Tensor) -> Tensor:
    """Logits [L, V] fp32 of the listed tokens += values [N] fp32 (-inf bans), in place; cu, token_ids as penalties.

    Returns logits. Raises ValueError for wrong shapes, lists or ids."""
    check_logits_(logits)
    num_rows, vocab_size = logits.shape
    cu, token_ids = _check_lists(logits, cu, token_ids, num_rows)
    num_ids = token_ids.shape[0]
    values = _check("values", values, torch.float32, num_ids, logits)
    library = cpu_library() if logits.device.type == "cpu" else None
    if library is None:
        status = (gpu_body("penalties", logits) or reference).add_bias_(logits, cu, token_ids, values)
    else:
        status = library.add_bias(
            logits.data_ptr(),
            logits.stride(0),
            num_rows,
            vocab_size,
            cu.data_ptr(),
            token_ids.data_ptr(),
            num_ids,
            values.data_ptr(),
            torch.get_num_threads(),
        )
    _raise_wrong(status, vocab_size, num_rows, num_ids)
    return logits


def keep_only_(logits: Tensor, row_ids: Tensor, cu: Tensor, token_ids: Tensor) -> Tensor:
    """Rows row_ids [R] int64 (distinct) of logits [L, V] fp32 become -inf outside their lists, in place.

    cu: [R + 1] int32; token_ids: [N] int32. Returns logits. Raises ValueError for wrong shapes, lists or ids."""
    check_logits_(logits)
    num_rows, vocab_size = logits.shape
    num_lists = row_ids.shape[0] if row_ids.ndim == 1 else -1
    row_ids = _check("row_ids", row_ids, torch.int64, max(num_lists, 0), logits)
    cu, token_ids = _check_lists(logits, cu, token_ids, num_lists)
    num_ids = token_ids.shape[0]
    library = cpu_library() if logits.device.type == "cpu" else None
    if library is None:
        status = (gpu_body("penalties", logits) or reference).keep_only_(logits, row_ids, cu, token_ids)
    else:
        status = library.keep_only(
            logits.data_ptr(),
            logits.stride(0),
            num_rows,
            vocab_size,
            row_ids.data_ptr(),
            num_lists,
            cu.data_ptr(),
            token_ids.data_ptr(),
            num_ids,
            torch.get_num_threads(),
        )
    _raise_wrong(status, vocab_size, num_rows, num_ids)
    return logits
