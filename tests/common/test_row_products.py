"""Products of rows are right, whatever the sizes. (Where a row is must not matter: a silo tries that before a sum.)"""

from __future__ import annotations

import pytest
import torch

from dpdd.common.row_products import TILE, filled, row_products


@pytest.mark.parametrize("columns", [1, 7, 16, 33])
def test_products_are_those_of_the_matrix(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    rows, matrix = torch.randn(9, 5, generator=generator), torch.randn(columns, 5, generator=generator).T
    torch.testing.assert_close(row_products(rows, matrix), rows @ matrix)
    assert filled(matrix).shape[1] % TILE == 0 and filled(matrix).is_contiguous()
    assert not filled(matrix)[:, columns:].any()
