"""system_fingerprint: everything besides the request and its seed that the output bits depend on."""

from __future__ import annotations

import hashlib

import torch

from decodex.kernels.backend import isa
from decodex.models.interface import CausalLM
from decodex.version import __version__

__all__ = ["system_fingerprint"]


def system_fingerprint(model: CausalLM, dtype: str, device: torch.device) -> str:
    """`dx_` and 16 hex digits over version, weights, precision, kernel instruction set, numerics and parallelism."""
    kernels = isa() if device.type == "cpu" else f"cuda:{torch.cuda.get_device_capability(device)}"
    numerics = "invariant" if model.replayable else "default"
    parts = (__version__, model.weights_digest, dtype, kernels, numerics, f"torch{torch.__version__}", "tp=1")
    return "dx_" + hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
