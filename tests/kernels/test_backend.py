"""Choice of the CPU bodies: forced reference, environment switch, and the compiled module's argument checks."""

import subprocess
import sys

import pytest

from decodex.kernels import backend


def test_forced_reference_and_back():
    before = backend.isa()
    with backend.set_backend("reference"):
        assert backend.cpu_library() is None
        assert backend.isa() == "reference"
    assert backend.isa() == before


def test_unknown_backend_is_refused():
    expected = 'expected "native", "triton" or "reference", got \'gpu\''
    with pytest.raises(ValueError, match=expected), backend.set_backend("gpu"):
        pass


def test_environment_switches_the_library_off_with_one_line():
    code = "from decodex.kernels import backend; print(backend.isa())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"DECODEX_CPU_KERNELS": "0", "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "reference"
    assert run.stderr.count("CPU kernels are off") == 1


PRODUCTS = """
import torch
from decodex.kernels import backend
from decodex.kernels.linear import pack_linear

generator = torch.Generator().manual_seed(0)
for num_columns, size in ((70, 64), (33, 96), (64, 50)):
    weight = torch.randn(num_columns, size, generator=generator).bfloat16()
    x = torch.randn(40, size, generator=generator) * torch.exp2(torch.randint(-8, 8, (40, size), generator=generator))
    linear, expected = pack_linear(weight), x.double() @ weight.double().T
    found = linear(x)
    assert torch.all((found - expected).abs() <= 1e-6 * (x.double().abs() @ weight.double().abs().T))
    assert all(torch.equal(linear(x[i : i + n]), found[i : i + n]) for i in (0, 5) for n in (1, 2, 15, 16, 17, 33))
    assert torch.equal(linear.rows(torch.arange(num_columns)), weight.float())
    x[3, 5], x[4, 1], x[5, 0] = float("inf"), float("nan"), float("-inf")
    assert torch.equal(linear(x).double().nan_to_num(nan=2.0, posinf=1.0, neginf=-1.0)[3:6],
                       (x.double() @ weight.double().T).nan_to_num(nan=2.0, posinf=1.0, neginf=-1.0)[3:6])
print(backend.isa())
"""


@pytest.mark.skipif(backend.isa() not in ("avx512", "amx"), reason="this machine has one instruction set only")
@pytest.mark.parametrize("pinned", ["avx2", "avx512", ""])
def test_each_instruction_set_multiplies_as_exactly_as_float32_and_rows_alone(pinned):
    run = subprocess.run(
        [sys.executable, "-c", PRODUCTS],
        env={"DECODEX_CPU_ISA": pinned, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    assert run.stdout.strip() == (pinned or backend.isa())


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library on this machine")
def test_compiled_functions_count_and_convert_their_arguments():
    library = backend.cpu_library()
    assert backend.isa() in ("avx2", "avx512", "amx", "neon")
    with pytest.raises(TypeError, match="expected 7 arguments, got 1"):
        library.silu_mul(0)
    with pytest.raises(TypeError):
        library.silu_mul("x", 0, 0, 0, 0, 0, 1)
    with pytest.raises(OverflowError):
        library.silu_mul(0, 2**70, 0, 0, 0, 0, 1)
