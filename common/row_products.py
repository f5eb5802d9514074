"""Matrix products whose rows come out the same, to the last bit, wherever in a batch they are.

A record's contribution must not depend on who else is in its batch. BLAS computes a product tile by tile, and rounds
otherwise in tiles at the right edge, where it leaves off in another place for each row. With columns of zeros that
fill up the last tile, and a matrix that lies in memory row by row, there is no such edge. What that does on some
processor is not promised: whoever depends on it tries it (`independent_of_batch_position` in a silo).

>>> import torch
>>> filled(torch.ones(2, 5)).shape
torch.Size([2, 16])
>>> row_products(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
tensor([[1., 2.],
        [3., 4.]])
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

TILE = 16
"""Columns: as many single-precision numbers as the widest vector registers hold."""


def filled(matrix: Tensor) -> Tensor:
    """The matrix, row by row in memory, with columns of zeros up to a multiple of `TILE`."""
    return functional.pad(matrix, (0, -matrix.shape[1] % TILE)).contiguous()


def row_products(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows (N, K) times a matrix (K, M)."""
    return (rows @ filled(matrix))[:, : matrix.shape[1]]
