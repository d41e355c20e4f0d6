"""Facts about this machine and these versions for measurements: no host names, no paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from typing import Any

import psutil
import torch

__all__ = ["machine_facts", "version_facts"]


def cpu_model() -> str:
    """The processor's marketing name, from the operating system."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if match := re.match(r"(?:model name|Model)\s*:\s*(.+)", line):
                    return match.group(1).strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_facts() -> dict[str, Any]:
    """Processor, usable cores, memory (GiB), kernel instruction set, threads, operating system."""
    from decodex.kernels import backend

    affinity = getattr(os, "sched_getaffinity", None)
    facts: dict[str, Any] = {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernels": backend.isa(),
        "torch_threads": torch.get_num_threads(),
        "system": platform.system(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def version_facts(*packages: str) -> dict[str, str]:
    """Versions of Python and of the named packages; "absent" for one that is not installed."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "absent"
    return versions
