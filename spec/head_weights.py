"""Checkpoints of draft heads, read strictly: a tensor that is missing, misshapen or not used is refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from decodex.kernels.linear import Kind, PackedLinear, pack_linear

__all__ = ["HeadError", "HeadWeights", "read_count", "read_section", "write_tensors"]


class HeadError(ValueError):
    """A head's checkpoint or config that can't be used, named by file, tensor or field."""


def read_count(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """A whole number above 0 from config.json; `default` where the field is absent, null or 0, else HeadError."""
    value = config.get(field)
    if default is not None and (value is None or value == 0):
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise HeadError(f"config.json: field {field} is {value!r}, expected a whole number above 0")
    return value


def read_section(config: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """An object within config.json, empty where it is absent or null; else HeadError."""
    value = config.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise HeadError(f"config.json: field {field} is {value!r}, expected an object")
    return value


def write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """model.safetensors in a folder, whole or not at all, for whoever may read the folder's other files."""
    partial = folder / "model.safetensors.partial"
    partial.touch()
    mode = partial.stat().st_mode
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata={"format": "pt"})
    partial.chmod(mode)  # the writer makes it the owner's alone
    partial.replace(folder / "model.safetensors")


class HeadWeights:
    """The tensors of one head by name; what was never taken is found by `refuse_untaken`."""

    def __init__(
        self,
        readers: Mapping[str, Callable[[], Tensor]],
        source: str,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        kind: Kind | Literal["auto"] = "auto",
    ) -> None:
        """`readers`: name -> the tensor; `source` names the checkpoint in errors; `dtype` None: as published; `kind`:
        of packed layers, see `pack_linear`."""
        self._readers = dict(readers)
        self._taken: set[str] = set()
        self.source = source
        self.device = torch.device(device)
        self.dtype, self.kind = dtype, kind
        self.nbytes = 0  # held by what was taken

    @staticmethod
    def open(
        folder: Path,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        kind: Kind | Literal["auto"] = "auto",
    ) -> HeadWeights:
        """All tensors of a folder's *.safetensors, else of its pytorch_model*.bin (plain tensors, no pickled code)."""
        readers: dict[str, Callable[[], Tensor]] = {}
        files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
        if not files:
            raise HeadError(f"{folder}: no *.safetensors and no pytorch_model*.bin in this folder")
        for file in files:
            for name, reader in _read_names(file).items():
                if name in readers:
                    raise HeadError(f"{file}: tensor {name!r} is in another file of this folder too")
                readers[name] = reader
        return HeadWeights(readers, str(folder), device, dtype, kind)

    def below(self, prefix: str) -> HeadWeights:
        """Only the tensors whose names begin so: a head inside a target's checkpoint."""
        readers = {name: reader for name, reader in self._readers.items() if name.startswith(prefix)}
        return HeadWeights(readers, self.source, self.device, self.dtype, self.kind)

    def __contains__(self, name: str) -> bool:
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor as stored; HeadError if it is absent or of another shape."""
        if name not in self._readers:
            raise HeadError(f"{self.source}: tensor {name!r} is missing")
        tensor = self._readers[name]()
        if tuple(tensor.shape) != shape:
            raise HeadError(
                f"{self.source}: tensor {name!r} has shape {list(tensor.shape)}, its config needs {list(shape)}"
            )
        self._taken.add(name)
        return tensor

    def take_weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The same of a tensor of weights: HeadError where it is no bfloat16, float16 or float32."""
        tensor = self.take(name, shape)
        if tensor.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise HeadError(f"{self.source}: tensor {name!r} is {tensor.dtype}, expected bfloat16, float16 or float32")
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape, for sizes that no config gives; HeadError if the tensor is absent."""
        if name not in self._readers:
            raise HeadError(f"{self.source}: tensor {name!r} is missing")
        return tuple(self._readers[name]().shape)

    def vector(self, name: str, size: int, offset: float = 0.0) -> Tensor:
        """A norm's weight plus `offset`, fp32 on the device."""
        vector = self.take_weight(name, (size,)).to(self.device, torch.float32) + offset
        self.nbytes += 4 * size
        return vector

    def matrix(self, name: str, shape: tuple[int, int]) -> Tensor:
        """A plain matrix on the device, in the dtype that is held."""
        matrix = self._held(self.take_weight(name, shape))
        self.nbytes += matrix.numel() * matrix.element_size()
        return matrix

    def linear(self, names: Sequence[str], sizes: Sequence[int], in_features: int) -> PackedLinear:
        """The layers `names` [size, in_features] stacked, with biases where the checkpoint has them (all or none)."""
        weights = [self.take_weight(f"{name}.weight", (size, in_features)) for name, size in zip(names, sizes)]
        has_bias = any(f"{name}.bias" in self for name in names)
        biases = [self.take_weight(f"{name}.bias", (size,)) for name, size in zip(names, sizes)] if has_bias else []
        return self.pack(torch.cat(weights) if len(weights) > 1 else weights[0], torch.cat(biases) if biases else None)

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
        """A packed layer of tensors that were taken."""
        packed = pack_linear(self._held(weight), None if bias is None else bias.to(self.device), self.kind)
        self.nbytes += packed.nbytes
        return packed

    def refuse_untaken(self) -> None:
        """HeadError naming a tensor that nothing has read: the head would not be the one that was trained."""
        untaken = sorted(self._readers.keys() - self._taken)
        if untaken:
            raise HeadError(
                f"{self.source}: tensor {untaken[0]!r} has no place in this layout ({len(untaken)} such tensors)"
            )

    def _held(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype or weight.dtype)


def _read_names(file: Path) -> dict[str, Callable[[], Tensor]]:
    try:
        if file.suffix == ".safetensors":
            shard: Any = safe_open(file, framework="pt")
            names: list[str] = list(shard.keys())
            return {name: partial(shard.get_tensor, name) for name in names}
        held = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
        if not isinstance(held, dict) or not all(isinstance(value, Tensor) for value in held.values()):
            raise HeadError(f"{file}: expected a dictionary of tensors")
        return {name: partial(held.__getitem__, name) for name in held}
    except HeadError:
        raise
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError) as error:
        raise HeadError(f"{file}: can't be read ({type(error).__name__}: {error})") from error
    except Exception as error:  # pickle's own kinds: what is not a plain tensor is refused
        raise HeadError(f"{file}: refused ({type(error).__name__}: {error})") from error
