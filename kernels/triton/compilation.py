"""Every Triton kernel compiled ahead of time for three targets, with what the compiled code uses."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decodex.kernels.triton import bitmask, buckets, penalties, rng, sampling, truncation, verify

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
MODULES = {
    "rng": rng,
    "penalties": penalties,
    "bitmask": bitmask,
    "truncation": truncation,
    "buckets": buckets,
    "sampling": sampling,
    "verify": verify,
}


class Usage(NamedTuple):
    """What one kernel needs on one target."""

    registers: int  # of a thread
    shared: int  # bytes of a program
    spills: int  # bytes of a thread in local memory (NVIDIA), or spilled registers (AMD)


def _first_int(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"expected {pattern!r} in the compiler's output")
    return int(found.group(1))


def _usage(compiled: Any, target: GPUTarget) -> Usage:
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        spills = _first_int(r"\.vgpr_spill_count:\s*(\d+)", text) + _first_int(r"\.sgpr_spill_count:\s*(\d+)", text)
        spills = max(spills, _first_int(r"\.private_segment_fixed_size:\s*(\d+)", text))
        registers = _first_int(r"\.vgpr_count:\s*(\d+)", text)
    else:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        registers = _first_int(r"REG:(\d+)", text)
        spills = _first_int(r"STACK:(\d+)", text) + _first_int(r"LOCAL:(\d+)", text)
    return Usage(registers, compiled.metadata.shared, spills)


def compile_kernel(kernel: Any, types: str, constants: dict[str, Any], num_warps: int, target: GPUTarget) -> Usage:
    """Compiles a kernel whose arguments have these Triton types, in order; constants by name. Raises what Triton does.

    Pointers are taken as aligned to 16 bytes, as those of most calls are."""
    names = [name for name in kernel.arg_names if name not in constants]
    arguments = dict(zip(names, types.split(), strict=True))
    signature = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
    is_aligned = [i for i, name in enumerate(kernel.arg_names) if arguments.get(name, "").startswith("*")]
    source = ASTSource(
        kernel,
        signature,
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in is_aligned},
    )
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    return _usage(triton.compile(source, target=target, options=options), target)


def _name(module: str, kernel: Any, constants: dict[str, Any]) -> str:
    flags = [name.lower() for name, value in constants.items() if value is True]
    return f"{module}.{kernel.__name__.strip('_')}" + "".join(f" {flag}" for flag in flags)


def compile_all() -> int:
    """Prints a line for each kernel and target; 1 if one does not compile or spills, else 0."""
    print(f"{'kernel':<34}{'target':<9}{'registers':>10}{'shared':>9}{'spills':>8}")
    specs = [(module, spec) for module, kernels in MODULES.items() for spec in kernels.KERNELS]
    work = [(_name(module, spec[0], spec[2]), target, spec) for module, spec in specs for target in TARGETS]

    def one(item: tuple[str, str, tuple[Any, str, dict[str, Any], int]]) -> Usage | Exception:
        _, target, spec = item
        try:
            return compile_kernel(*spec, TARGETS[target])
        except Exception as error:  # whatever a compiler throws is this kernel's failure
            return error

    num_failed = 0  # or spilled
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (name, target, _), usage in zip(work, pool.map(one, work)):
            if isinstance(usage, Exception):
                print(f"{name:<34}{target:<9} failed: {usage}")
            else:
                print(f"{name:<34}{target:<9}{usage.registers:>10}{usage.shared:>9}{usage.spills:>8}")
            num_failed += isinstance(usage, Exception) or usage.spills > 0
    print(f"{len(work)} compiled for {', '.join(TARGETS)}: {num_failed or 'none'} failed or spilled")
    return 1 if num_failed else 0
