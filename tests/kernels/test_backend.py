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


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library on this machine")
def test_compiled_functions_count_and_convert_their_arguments():
    library = backend.cpu_library()
    assert backend.isa() in ("avx2", "avx512", "neon")
    with pytest.raises(TypeError, match="expected 7 arguments, got 1"):
        library.silu_mul(0)
    with pytest.raises(TypeError):
        library.silu_mul("x", 0, 0, 0, 0, 0, 1)
    with pytest.raises(OverflowError):
        library.silu_mul(0, 2**70, 0, 0, 0, 0, 1)
