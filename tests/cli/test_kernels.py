"""`decodex kernels compile`: exit status by what the compilers report. `make check` compiles every kernel."""

import subprocess
import sys

import interpreter  # noqa: F401  # before any kernel

from decodex.cli import kernels
from decodex.kernels.triton import compilation

ONE_MODULE = """
import sys
from decodex.kernels.triton import compilation
compilation.MODULES = {"bitmask": compilation.bitmask}
sys.exit(compilation.compile_all())
"""


def test_a_module_compiles_for_three_targets_without_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = subprocess.run([sys.executable, "-c", ONE_MODULE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["kernel", "target", "registers", "shared", "spills"]
    assert sum(line.startswith("bitmask.mask_tiles row_ids") for line in lines) == 3
    assert lines[-1] == "6 compiled for sm_80, sm_90, gfx942: none failed or spilled"


def test_spills_and_failures_are_failures(monkeypatch, capsys):
    def compile_kernel(kernel, types, constants, num_warps, target):
        if target.arch == 90:
            raise RuntimeError("no such instruction")
        return compilation.Usage(registers=255, shared=0, spills=8 * (target.arch == 80))

    monkeypatch.setattr(compilation, "compile_kernel", compile_kernel)
    monkeypatch.setattr(compilation, "MODULES", {"rng": compilation.rng})
    assert compilation.compile_all() == 1
    out = capsys.readouterr().out
    assert "failed: no such instruction" in out
    assert out.endswith("9 compiled for sm_80, sm_90, gfx942: 6 failed or spilled\n")


def test_wrong_arguments(capsys):
    assert kernels.run(["build"]) == 2
    assert "usage: decodex kernels compile" in capsys.readouterr().err
