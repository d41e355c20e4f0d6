"""Linear layers with packed weights: memory-bound from 1 to 8 rows, bitwise the same for a row in any batch."""

import threading
import weakref
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.checks import check_out, describe
from decodex.kernels.reference import linear as reference

Kind = Literal["bf16", "fp16", "fp32", "int8"]
_KIND_OF_DTYPE: dict[torch.dtype, Kind] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_DTYPE_OF_KIND = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.int8}
_CODES = {"bf16": 0, "fp16": 1, "fp32": 2, "int8": 3}  # enum Kind of cpu/linear.inc
_HUGE_PAGE = 2 << 20  # bytes
_CHUNK = 64 << 20  # bytes of address space; only what is packed into becomes resident


class _Arena:
    """Packed weights side by side on huge pages (measured: 15-20 % less time at 1 to 4 rows than 4 KiB pages).

    A chunk lives as long as some layer in it; the arena itself keeps none alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: weakref.ref[Tensor] | None = None
        self._used = 0  # bytes

    def allocate(self, library: Any, nbytes: int) -> tuple[Tensor, Tensor]:
        """([nbytes] uint8 aligned to 64, the chunk to hold on to)."""
        with self._lock:
            chunk = None if self._chunk is None else self._chunk()
            if chunk is None or self._used + nbytes > chunk.numel():
                size = -(-max(nbytes, _CHUNK) // _HUGE_PAGE) * _HUGE_PAGE
                raw = torch.empty(size + _HUGE_PAGE, dtype=torch.uint8, device="cpu")
                chunk = raw[-raw.data_ptr() % _HUGE_PAGE :][:size]
                library.advise_huge_pages(chunk.data_ptr(), size)
                self._chunk, self._used = weakref.ref(chunk), 0
            piece = chunk[self._used : self._used + nbytes]
            self._used += -(-nbytes // 64) * 64
            return piece, chunk


_arena = _Arena()


class PackedLinear:
    """x [M,K] fp32 -> [M,N] fp32 with weights [N,K] stored as `kind`. Made by `pack_linear`, then immutable."""

    in_features: int  # K
    out_features: int  # N
    kind: Kind
    nbytes: int  # of weight, scale and bias as stored by this body

    def __init__(self, weight: Tensor, scale: Tensor | None, bias: Tensor | None, kind: Kind) -> None:
        self.out_features, self.in_features = weight.shape
        self.kind = kind
        self._bias = bias  # [N] fp32
        self._store(weight, scale)
        held = [t.numel() * t.element_size() for t in (scale, bias) if t is not None]
        self.nbytes = self._weight_nbytes() + sum(held)

    def __call__(self, x: Tensor, out: Tensor | None = None, add_to: Tensor | None = None) -> Tensor:
        """x [M,K] fp32 (any row stride) -> [M,N] fp32: `out` if given; `add_to` [M,N] has it added and is returned.

        Raises ValueError for a wrong shape, dtype or layout, or when both `out` and `add_to` are given."""
        shape = x.shape
        if len(shape) != 2 or shape[1] != self.in_features or x.dtype is not torch.float32:
            raise ValueError(f"x: expected float32 [M, {self.in_features}], got {describe(x)}")
        num_rows, width = shape[0], self.out_features
        if add_to is not None:
            if out is not None:
                raise ValueError("out, add_to: expected at most one of them, got both")
            out, stride = add_to, check_out(add_to, x, num_rows, width, "add_to")
        elif out is not None:
            stride = check_out(out, x, num_rows, width)
        else:
            out, stride = x.new_empty(num_rows, width), width
        if num_rows:
            self._forward(x, num_rows, out, stride, add_to is not None)
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """The weight's rows ids [T] int64, as [T,K] fp32 (embedding look-up). ValueError for an id outside 0..N-1."""
        if ids.dim() != 1 or ids.dtype is not torch.int64:
            raise ValueError(f"ids: expected int64 [T], got {describe(ids)}")
        return self._rows(ids.contiguous())

    def _bad_ids(self, ids: Tensor) -> ValueError:
        return ValueError(f"ids: expected values in 0..{self.out_features - 1}, got {ids.min()}..{ids.max()}")

    def _store(self, weight: Tensor, scale: Tensor | None) -> None:
        raise NotImplementedError

    def _weight_nbytes(self) -> int:
        raise NotImplementedError

    def _forward(self, x: Tensor, num_rows: int, target: Tensor, stride: int, accumulate: bool) -> None:
        raise NotImplementedError

    def _rows(self, ids: Tensor) -> Tensor:
        raise NotImplementedError


class _NativeLinear(PackedLinear):
    """Body: cpu/linear.inc."""

    def _store(self, weight: Tensor, scale: Tensor | None) -> None:
        self._library = backend.library
        panel = torch.empty(1, dtype=torch.int64, device="cpu")
        self._library.linear_layout(panel.data_ptr())
        width = int(panel)
        size = -(-self.out_features // width) * width * self.in_features * weight.element_size()
        self._packed, self._chunk = _arena.allocate(self._library, size)
        self._scale = scale
        self._code = _CODES[self.kind]
        weight = weight if weight.stride(1) == 1 else weight.contiguous()
        self._weight_ptr = self._packed.data_ptr()
        self._scale_ptr = 0 if scale is None else scale.data_ptr()
        self._bias_ptr = 0 if self._bias is None else self._bias.data_ptr()
        self._library.linear_pack(
            *(weight.data_ptr(), self.out_features, self.in_features, weight.stride(0)),
            *(self._code, self._weight_ptr, torch.get_num_threads()),
        )

    def _weight_nbytes(self) -> int:
        return self._packed.numel()

    def _forward(self, x: Tensor, num_rows: int, target: Tensor, stride: int, accumulate: bool) -> None:
        if not x.is_cpu:
            raise ValueError(f"x: expected a CPU tensor, got {describe(x)}")
        row_stride, column_stride = x.stride()
        if column_stride != 1:
            x = x.contiguous()
            row_stride = self.in_features
        status = self._library.linear_forward(
            x.data_ptr(),
            row_stride,
            num_rows,
            self.out_features,
            self.in_features,
            self._code,
            self._weight_ptr,
            self._scale_ptr,
            self._bias_ptr,
            target.data_ptr(),
            stride,
            accumulate,
            torch.get_num_threads(),
        )
        if status:
            raise MemoryError(f"no memory to reorder {list(x.shape)} activations")

    def _rows(self, ids: Tensor) -> Tensor:
        out = torch.empty(ids.shape[0], self.in_features, dtype=torch.float32, device=ids.device)
        shape = (self.out_features, self.in_features, self._code)
        arguments = (self._scale_ptr, ids.data_ptr(), ids.shape[0], out.data_ptr())
        if self._library.linear_rows(self._weight_ptr, *shape, *arguments):
            raise self._bad_ids(ids)
        return out


def native_descriptor(linear: PackedLinear) -> tuple[int, ...] | None:
    """(kind, N, K, addresses of weight, scale and bias or 0) for ops of the CPU library, None for another body's."""
    if not isinstance(linear, _NativeLinear):
        return None
    addresses = (linear._weight_ptr, linear._scale_ptr, linear._bias_ptr)
    return (linear._code, linear.out_features, linear.in_features, *addresses)


class _TorchLinear(PackedLinear):
    """Body: reference/linear.py in fp32 (oneDNN on a CPU that has it; a plain product on other devices)."""

    def _store(self, weight: Tensor, scale: Tensor | None) -> None:
        # Row look-up keeps the weight as published; it shares storage with the caller's tensor where it can.
        self._weight, self._scale = weight, scale
        wide = weight.float() if scale is None else reference.dequantize_int8(weight, scale)
        self._is_onednn = wide.is_cpu and wide.numel() > 0 and reference.has_onednn()
        self._wide = reference.onednn_pack(wide.contiguous()) if self._is_onednn else wide

    def _weight_nbytes(self) -> int:
        count = self.in_features * self.out_features
        return count * 4 + (0 if self._wide is self._weight else count * self._weight.element_size())

    def _forward(self, x: Tensor, num_rows: int, target: Tensor, stride: int, accumulate: bool) -> None:
        if self._is_onednn:
            result = reference.linear_onednn(x, self._wide, self._bias)
        elif x.is_cpu:
            result = reference.linear_rows(x, self._wide, self._bias)
        else:
            result = torch.nn.functional.linear(x, self._wide, self._bias)
        if accumulate:
            target += result
        else:
            target.copy_(result)

    def _rows(self, ids: Tensor) -> Tensor:
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= self.out_features):
            raise self._bad_ids(ids)
        rows = self._weight[ids].float()
        return rows if self._scale is None else rows * self._scale[ids, None]


def pack_linear(weight: Tensor, bias: Tensor | None = None, kind: Kind | Literal["auto"] = "auto") -> PackedLinear:
    """Packs weight [N,K] (and bias [N]); "auto" keeps the weight's dtype, "int8" scales each output channel by absmax.

    The original may be freed afterwards. Raises ValueError for a wrong shape, dtype or kind."""
    if weight.dim() != 2 or weight.dtype not in _KIND_OF_DTYPE:
        raise ValueError(f"weight: expected bfloat16, float16 or float32 [N, K], got {describe(weight)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias: expected [{weight.shape[0]}], got {describe(bias)}")
    if kind == "auto":
        kind = _KIND_OF_DTYPE[weight.dtype]
    elif kind not in get_args(Kind):
        raise ValueError(f"kind: expected auto, bf16, fp16, fp32 or int8, got {kind!r}")
    weight = weight.detach()
    scale = None
    if kind == "int8":
        weight, scale = reference.quantize_int8(weight)
    else:
        weight = weight.to(_DTYPE_OF_KIND[kind])
    bias = None if bias is None else bias.detach().to(weight.device, torch.float32).contiguous()
    body = _NativeLinear if backend.library is not None and weight.is_cpu else _TorchLinear
    return body(weight, scale, bias, kind)
