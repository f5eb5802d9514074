"""Exact sums of contributions that are too wide to be made: a few numbers p and Q of each record stand for p ⊗ x + Q S.

A gradient with respect to m vectors s_j is often a sum over few vectors: p_j x + Σ_l q_jl s_l, with the record's own
vector x and the public rows s_l. It has m × P numbers, of which only m + m² and P are its own. With an orthonormal
basis V of the rows, S = T V, it is p ⊗ x + M V, where M = Q T. So p, M, x and V are put on integer grids; the
contribution is *defined* as p ⊗ x + M V of these whole numbers, in units of the usual grid, and its sum over records
comes from two matrix products. It is never made, and nothing is rounded after clipping: sums are exact, in whatever
order and in however many parts they are added up.

Sensitivity: the squared norm of a contribution is at most Σ_j (p_j² |x|² + 2 p_j M_j·(V x) + λ |M_j|²), where λ, hardly
more than 1, is the largest eigenvalue of V Vᵀ in whole numbers. It is computed from the whole numbers that are added,
and what rounding can do to it is added too: with a_j = |p_j| |x| + √λ |M_j| every term and partial sum of row j is at
most a_j², and there are fewer than 4 rank + 256 roundings on the way to any. A record whose norm might be above 1 adds
nothing. Records are scaled to a little less than 1 before factors become whole numbers, so that this hardly ever
happens.

Such a sum may have plain segments beside, in the same contribution: then the layout's first segment has `factors` (m,
P) and its `norm`, to which p ⊗ x + M V is clipped, and the rows beside are clipped to what that leaves of norm 1.

>>> from dpdd.common.privacy.clipping import global_segment
>>> from dpdd.common.privacy.entropy import SeededEntropy
>>> from dpdd.common.privacy.events import NonPrivate
>>> from dpdd.common.privacy.privatise import in_units, privatise
>>> import torch
>>> basis = Basis.of(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
>>> layout = Layout((global_segment("gradient", 6, classes=1),))
>>> total = FactoredSum(layout, 1.0, 1, SeededEntropy(1), basis)
>>> mixing = torch.tensor([[[0.0, 0.25], [0.0, 0.0]]])
>>> total.add_factors(np.array([0]), Factors(torch.tensor([[0.0, 0.5]]), mixing, torch.tensor([[0.0, 0.0, 1.0]])))
>>> in_units(privatise(total, NonPrivate(), SeededEntropy(1)).arrays["gradient"]).round(3).reshape(2, 3)
array([[0.  , 0.25, 0.  ],
       [0.  , 0.  , 0.5 ]])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy.clipping import FIXED_POINT_BITS, FIXED_POINT_ONE, Layout, Segment, clip_to_grid, factor_bound
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.sampling import SampledSum

if TYPE_CHECKING:
    from torch import Tensor

ROOM, MORE_ROOM = 2.0**-10, 2.0**-5
"""By how much less than 1 contributions are scaled to, as rounding may lengthen them; the second where it did."""
MOST_TOGETHER = 1 << 11
"""Records that are added at once, at most."""
_LARGEST = 2.0**40
"""Of any product that goes into a sum: float64 adds twice `MOST_TOGETHER` of them exactly, below 2^53."""
_LARGEST_FACTOR = 2.0**23
"""Of p and M in single precision, which holds whole numbers up to twice this."""
_MOST_IN_SINGLE = 512
"""Rank up to which norms are found in single precision: beyond it their rounding would take too much of `ROOM`."""


@dataclass(frozen=True, eq=False)
class Factors:
    """Contributions p ⊗ x + Q S: `left` is p (N, m), `mixing` Q (N, m, m), `right` x (N, P)."""

    left: Tensor
    mixing: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Basis:
    """The public rows S = T V: T (m, rank), and V (rank, P) as whole numbers, in steps of 2^-`bits`.

    x is taken in steps of 2^-`record_bits`; p and M have the other digits of `FIXED_POINT_BITS`.
    """

    mixing: Tensor
    rows: Tensor
    bits: int
    record_bits: int
    stretch: float  # λ in these whole numbers

    @classmethod
    def of(cls, rows: NDArray[np.floating]) -> Basis:
        """Of rows S (m, P), with as many bits as make the errors of both factors alike if records are as long."""
        import torch  # only here: accounting and aggregation should start without it

        values = torch.from_numpy(np.array(rows, np.float64))
        if values.ndim != 2 or not bool(torch.isfinite(values).all()):
            raise ValueError(f"a basis is made of finite rows, not of {tuple(values.shape)} numbers with others in it")
        count, width = values.shape
        orthonormal, turn = torch.linalg.qr(values.T)
        bits = _bits(math.sqrt(width / count / len(turn)))
        whole = (orthonormal.T * 2.0**bits).round()
        stretch = float(torch.linalg.eigvalsh(whole @ whole.T)[-1]) * (1.0 + 1e-9)
        length = max(float(values.square().sum(1).mean()), 1e-6)
        record_bits = _bits(0.25 * math.sqrt(width / count) / length)  # p's rounding should seldom need more room
        return cls(turn.T.contiguous(), whole, bits, record_bits, stretch)

    def to_grid(self, factors: Factors, bound: int = FIXED_POINT_ONE) -> Factors:
        """p, M and x as whole numbers, of contributions clipped to a norm of `bound` grid steps, those of norm 1 unless
        it is less; zeros for a record with none that fit.
        """
        import torch

        from dpdd.common.row_products import row_products

        dtype = torch.float32 if len(self.rows) <= _MOST_IN_SINGLE else torch.float64
        x = (factors.right.double() * 2.0**self.record_bits).round_()
        turn = (self.mixing * 2.0 ** (self.record_bits - self.bits)).to(dtype)
        p = factors.left.to(dtype, copy=True)
        q = row_products(factors.mixing.to(dtype).flatten(0, 1), turn).reshape(*p.shape, -1)  # beside p, in its grid
        _keep(x.square().sum(1) <= _LARGEST, p, q, x)
        norms = self._norms(p, q, x)[0].sqrt() / 2.0**self.record_bits / (bound / FIXED_POINT_ONE)
        whole = self._rounded(p, q, x, norms / (1.0 - ROOM))
        fits = self._fits(*whole, x, bound)
        if not bool(fits.all()):
            again = self._rounded(p, q, x, norms / (1.0 - MORE_ROOM))
            for each, other in zip(whole, again, strict=True):
                each[~fits] = other[~fits]
            _keep(self._fits(*whole, x, bound), *whole, x)
        return Factors(*whole, x)

    def _rounded(self, p: Tensor, q: Tensor, x: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors in whole numbers, of contributions divided by what their norms, as shares of the bound, are
        beyond 1.
        """
        scale = (2.0 ** (FIXED_POINT_BITS - self.record_bits) / norms.clamp_min(1.0)).to(p.dtype)
        return (p * scale[:, None]).round_(), (q * scale[:, None, None]).round_()

    def _fits(self, p: Tensor, q: Tensor, x: Tensor, bound: int) -> Tensor:
        """Which records have a norm of at most `bound`, and numbers whose sums are exact; none that is not finite."""
        squared, products, factors = self._norms(p, q, x)
        return (squared <= float(bound) ** 2) & (products <= _LARGEST) & (factors <= _LARGEST_FACTOR)

    def _norms(self, p: Tensor, q: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds on the squared norms, on all products that go into sums, and on p and M; by record."""
        import torch

        from dpdd.common.row_products import row_products

        rank = len(self.rows)
        seen = row_products(x, self.rows.T).to(q.dtype)
        with_record = torch.bmm(q, seen[:, :, None])[:, :, 0].double()
        mixed = self.stretch * q.square().sum(2).double()
        length, left = torch.linalg.vector_norm(x, dim=1, keepdim=True), p.double()
        squared = ((left * length).square() + 2.0 * left * with_record + mixed).sum(1)
        products = (left.abs() * length + mixed.sqrt()) * (1.0 + 1e-4)
        rounding = (4 * rank + 256) * torch.finfo(q.dtype).eps * products.square().sum(1)
        factors = torch.maximum(left.abs(), mixed.sqrt() / self.stretch**0.5)
        return squared.clamp_min(0.0) + rounding, products.amax(1), factors.amax(1)


class FactoredSum(SampledSum):
    """A sum over a Poisson sample of contributions in factors, with plain rows beside if the layout has such segments.

    Everything else about it is a `SampledSum`.
    """

    __slots__ = ("_basis", "_bound", "_mixed", "_together")

    def __init__(self, layout: Layout, rate: float, records: int, entropy: Entropy, basis: Basis) -> None:
        import torch

        super().__init__(layout, rate, records, entropy)
        first, shape = layout.segments[0], (len(basis.mixing), basis.rows.shape[1])
        alone = len(layout.segments) == 1 and first.factors is None
        if not (alone or first.factors == shape) or len(layout.products) > 1:
            raise ValueError(
                f"a factored sum has one segment of {math.prod(shape)} numbers; with others beside, one of factors "
                f"{shape}, and plain ones after it"
            )
        if (first.rows, first.width) != (1, math.prod(shape)) or any(rows != (0,) for rows in first.rows_of):
            raise ValueError(f"a factored sum has one segment of {math.prod(shape)} numbers, for all records alike")
        self._basis, self._bound = basis, bound_of(first)
        self._mixed, self._together = torch.zeros_like(basis.mixing), 0  # private, like the sums

    def add_factors(
        self,
        members: NDArray[np.int64],
        factors: Factors,
        beside: tuple[NDArray[np.floating], NDArray[np.int64]] | None = None,
    ) -> None:
        """Clip and add the contributions of some members; rows of `factors` beyond them are padding.

        `beside` are the rows of the plain segments and the labels of these members, where the layout has such segments.
        What their mixing matrices add up to meets the rows when no member is left, or too many came together.
        """
        import torch

        if self._sums is None:
            raise RuntimeError("this sum was privatised already; a new release needs a new sum")
        if not len(members) <= len(factors.left) == len(factors.mixing) == len(factors.right) <= MOST_TOGETHER:
            raise ValueError(f"each member has factors of its own, and at most {MOST_TOGETHER} are added at once")
        if (beside is None) != (not self.layout.plain or self.layout.segments[0].factors is None):
            raise ValueError("rows beside factors are for a layout with plain segments beside, and are wanted there")
        added = self._admitted(members)
        grid = self._basis.to_grid(factors, self._bound)
        if beside is not None:
            rows, labels = beside[0][: len(members)], beside[1][: len(members)]
            self._add_rows(clip_to_grid(rows, labels, self.layout).astype(np.float64), labels)
        p, q, x = (each[: len(members)] for each in (grid.left.double(), grid.mixing, grid.right))
        self._add(p.T @ x)
        self._mixed += q.sum(0, dtype=torch.float64)
        self._together += len(members)
        self._not_added[added] = False
        if self._together > MOST_TOGETHER or not self._not_added.any():
            self._add(self._mixed @ self._basis.rows)
            self._mixed, self._together = torch.zeros_like(self._mixed), 0

    def add_members(
        self, members: NDArray[np.int64], contributions: NDArray[np.floating], labels: NDArray[np.int64]
    ) -> None:
        """Not here: factors are added up apart, until no member is left."""
        raise TypeError("contributions to a factored sum come as factors: use add_factors")

    def _add(self, whole: Tensor) -> None:
        """Add what is exact: whole numbers below 2^53."""
        assert self._sums is not None
        self._sums[self.layout.segments[0].name][0] += whole.numpy().astype(np.int64).ravel()


def bound_of(segment: Segment) -> int:
    """The integer norm to which contributions in factors to this segment are clipped."""
    return FIXED_POINT_ONE if segment.factors is None else factor_bound(segment) ** 2


def _bits(ratio: float) -> int:
    """Digits after the point of a factor, so that its rounding and that of the other one weigh alike."""
    return min(max(round(0.5 * (FIXED_POINT_BITS + math.log2(ratio))), 0), FIXED_POINT_BITS - 8)


def _keep(fits: Tensor, *factors: Tensor) -> None:
    """Make zeros of the records that do not fit."""
    if not bool(fits.all()):
        for each in factors:
            each[~fits] = 0.0
