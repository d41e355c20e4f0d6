"""The torch function mode under transformers' code: packed products, and elementwise calls without tails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodex.kernels.linear import pack_linear
from decodex.models.row_invariant import PackedWeights, RowInvariant

functional = torch.nn.functional


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 7, 100, 112, 192, 40000])
@pytest.mark.parametrize(
    "function",
    [functional.silu, lambda x: functional.gelu(x, approximate="tanh"), torch.sigmoid, Tensor.tanh, Tensor.cos],
)
def test_elementwise_rows_do_not_depend_on_company(
    function: Callable[[Tensor], Tensor], width: int, threads: int
) -> None:
    """torch splits 301 x 112 values between threads in the middle of a row and handles the leftovers in scalar code."""
    rows = 301 if width < 1000 else 3
    x = torch.randn(1, rows, width, generator=torch.Generator().manual_seed(width))
    torch.set_num_threads(threads)
    with RowInvariant(PackedWeights(pack_linear)):
        together = function(x)
        alone = torch.cat([function(x[:, row : row + 1]) for row in range(0, rows, 6)], dim=1)
    assert together.shape == x.shape
    assert torch.equal(together[:, ::6], alone)
    torch.testing.assert_close(together, function(x))


def test_parameters_are_packed_when_first_met_and_keep_no_memory() -> None:
    weights = PackedWeights(pack_linear)
    router = nn.Parameter(torch.randn(8, 16), requires_grad=False)
    x = torch.randn(5, 16)
    expected = functional.linear(x, router)
    with RowInvariant(weights):
        first = functional.linear(x, router)
        second = functional.linear(x[None], router)[0]
    assert router.shape == (8, 16)
    assert router.untyped_storage().nbytes() == 4
    assert weights.nbytes > 0
    torch.testing.assert_close(first, expected)
    assert torch.equal(first, second)


@pytest.mark.parametrize("is_packed", [False, True])
def test_embedding_and_view_of_parameter(is_packed: bool) -> None:
    weights = PackedWeights(pack_linear)
    table = nn.Parameter(torch.randn(10, 4).bfloat16(), requires_grad=False)
    stack = nn.Parameter(torch.randn(3, 6, 4), requires_grad=False)
    wanted, x = table.data[torch.tensor([[1, 9], [0, 0]])].float(), torch.randn(2, 4)
    bias: Any = torch.randn(6)
    if is_packed:
        weights.adopt(table, None, pack_linear(table.data))
    with RowInvariant(weights):
        assert torch.equal(functional.embedding(torch.tensor([[1, 9], [0, 0]]), table), wanted)
        torch.testing.assert_close(functional.linear(x, stack[1], bias), x @ stack[1].T + bias)
