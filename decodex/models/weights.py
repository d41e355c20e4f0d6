"""Reads safetensors shards tensor by tensor into memory of its own: no mapped pages stay resident, and every
byte is hashed on the way (format: 8-byte little-endian header length, JSON header, data)."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decodex.errors import ModelError

__all__ = ["WeightReader"]

_MAX_UNHASHED = 4
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


class WeightReader:
    """All tensors of a checkpoint by name. Tensors that were never taken are in `untaken()`."""

    def __init__(self, shards: tuple[Path, ...]) -> None:
        self._entries: dict[str, tuple[Path, int, dict[str, Any]]] = {}  # name -> file, data start, entry
        for shard in shards:
            self._read_header(shard)
        self._taken: set[str] = set()
        self._hashes: dict[str, Future[str]] = {}
        self._unhashed: deque[Future[str]] = deque()  # few at a time: each holds its tensor in memory
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="weights-digest")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> Iterator[str]:
        """All tensor names."""
        return iter(self._entries)

    def untaken(self) -> list[str]:
        """Names that nobody asked for, sorted."""
        return sorted(self._entries.keys() - self._taken)

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """One tensor in its stored dtype; ModelError if it is absent, damaged or of another shape."""
        if name not in self._entries:
            raise ModelError(f"tensor {name!r} is missing from the checkpoint")
        shard, base, entry = self._entries[name]
        found = tuple(int(n) for n in entry["shape"])
        if shape is not None and found != shape:
            wanted = f"config.json needs {list(shape)}"
            raise ModelError(f"{shard}: tensor {name!r} has shape {list(found)}, {wanted}")
        self._taken.add(name)
        raw = torch.empty(entry["data_offsets"][1] - entry["data_offsets"][0], dtype=torch.uint8)
        with shard.open("rb") as file:
            file.seek(base + entry["data_offsets"][0])
            if file.readinto(memoryview(raw.numpy().data)) != raw.numel():
                raise ModelError(f"{shard}: truncated, tensor {name!r} ends beyond the file")
        self._hashes[name] = self._pool.submit(_sha256, raw)
        self._unhashed.append(self._hashes[name])
        if len(self._unhashed) > _MAX_UNHASHED:
            self._unhashed.popleft().result()
        return raw.view(_DTYPES[entry["dtype"]]).view(found)

    def digest(self) -> str:
        """sha256 over name, dtype, shape and content of every tensor, however the file is sharded."""
        for name in self._entries.keys() - self._hashes.keys():
            taken = name in self._taken
            self.take(name)
            if not taken:
                self._taken.discard(name)
        total = hashlib.sha256()
        for name in sorted(self._entries):
            entry = self._entries[name][2]
            total.update(f"{name}|{entry['dtype']}|{entry['shape']}|{self._hashes[name].result()}\n".encode())
        self._pool.shutdown()
        return total.hexdigest()

    def _read_header(self, shard: Path) -> None:
        try:
            size = shard.stat().st_size
            with shard.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= size - 8:
                    raise ModelError(f"{shard}: truncated or corrupt safetensors file (header {length})")
                header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                start, end = entry["data_offsets"]
                if entry["dtype"] not in _DTYPES:
                    raise ModelError(f"{shard}: tensor {name!r} has the unknown dtype {entry['dtype']!r}")
                num_bytes = prod(entry["shape"]) * _DTYPES[entry["dtype"]].itemsize
                if not 0 <= start <= end or end - start != num_bytes:
                    raise ModelError(f"{shard}: corrupt safetensors header at tensor {name!r}")
                if 8 + length + end > size:
                    raise ModelError(f"{shard}: truncated, {size} bytes, header needs {8 + length + end}")
                self._entries[name] = (shard, 8 + length, entry)
        except ModelError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(f"{shard}: corrupt safetensors file ({reason})") from error


def _sha256(raw: Tensor) -> str:
    return hashlib.sha256(memoryview(raw.numpy().data)).hexdigest()
