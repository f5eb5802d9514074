"""Coordinate descent on the codes of a few rows, until their kernel ridge classifier is the one that is wanted.

Rows of a table are discrete. Instead of relaxing them and rounding at the end, one cell after the other takes the value
with the smallest loss (`Goal.loss`), all others as they are. The kernel is the inner product of one-hot rows with a 1
beside them: the number of columns in which two rows agree, plus 1. So K's diagonal is the same whatever the codes are,
and with it λ; and a change of one row is a change of one row and column of K, whose inverse follows from that of the
rest (block inversion). So all values of a cell are tried at once.

>>> first_column = torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0, 0.0]]).double()
>>> goal = Goal.of(torch.eye(5).double(), first_column)
>>> improve(np.array([[0, 0], [0, 1]]), np.array([0, 1]), goal, (2, 2), ridge=1e-2, sweeps=5).tolist()
[[0, 0], [1, 0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.methods.dp_kip.kernels import centred
from dpdd.common.methods.dp_kip.moments import Goal
from dpdd.common.progress import Progress, silent

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
_BETTER = 1e-12
"""A change must be worth so much, or rounding would have cells change for ever."""


def improve(
    codes: Codes,
    labels: NDArray[np.int64],
    goal: Goal,
    sizes: Sequence[int],
    ridge: float,
    sweeps: int,
    progress: Progress = silent,
) -> Codes:
    """Rows of `sizes` possible codes each, from these rows on: at most so many sweeps over all cells of all rows."""
    codes, task = codes.copy(), _Task(goal, labels, tuple(sizes), ridge)
    hot = task.one_hot(codes)
    for sweep in range(sweeps):
        changes = 0
        for row in range(len(codes)):
            changes += task.improve_row(codes, hot, row)
            progress("choosing codes", sweep * len(codes) + row + 1, sweeps * len(codes))
        if not changes:
            break
    progress("choosing codes", sweeps * len(codes), sweeps * len(codes))
    return codes


@dataclass(frozen=True, eq=False)
class _Task:
    goal: Goal
    labels: NDArray[np.int64]
    sizes: tuple[int, ...]
    ridge: float

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The cell of every column's first code."""
        starts: NDArray[np.int64] = np.cumsum(self.sizes) - np.array(self.sizes)
        return starts

    @cached_property
    def second(self) -> Floats:
        """Q."""
        root = self.goal.root.double().numpy()
        second: Floats = root.T @ root
        return second

    @cached_property
    def toward(self) -> Floats:
        """Q W*ᵀ."""
        toward: Floats = self.goal.root.double().numpy().T @ self.goal.wanted.double().numpy().T
        return toward

    @cached_property
    def targets(self) -> Floats:
        """Y."""
        classes = self.goal.wanted.shape[0]
        targets: Floats = centred(torch.from_numpy(self.labels), classes).double().numpy()
        return targets

    def one_hot(self, codes: Codes) -> Floats:
        """Encoded rows, with the 1 beside them."""
        hot = np.zeros((len(codes), sum(self.sizes) + 1))
        np.put_along_axis(hot, codes + self.starts, 1.0, axis=1)
        hot[:, -1] = 1.0
        return hot

    def improve_row(self, codes: Codes, hot: Floats, row: int) -> int:
        """One cell of the row after the other; how many changed. `codes` and `hot` do, too."""
        losses, changes = self._losses(hot, row), 0
        best = losses(hot[row : row + 1])[0]
        for column, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            tried = np.repeat(hot[row : row + 1], size, axis=0)
            tried[:, start : start + size] = np.eye(size)
            found = losses(tried)
            code = int(np.argmin(found))
            if found[code] < best - _BETTER:
                best, hot[row], codes[row, column] = found[code], tried[code], code
                changes += 1
        return changes

    def _losses(self, hot: Floats, row: int) -> _Losses:
        rest = np.delete(hot, row, axis=0)
        diagonal = len(self.sizes) + 1.0
        own = diagonal * (1.0 + self.ridge)
        gram = rest @ rest.T
        gram[np.diag_indices(len(rest))] = own
        inverse = np.asarray(np.linalg.inv(gram), np.float64)
        dual = inverse @ np.delete(self.targets, row, axis=0)
        seen = rest @ self.second
        return _Losses(self, rest, self.targets[row], own, inverse, dual, seen, seen @ rest.T)


@dataclass(frozen=True, eq=False)
class _Losses:
    """The loss for each of several values of one row; what follows from the rest is worked out before."""

    task: _Task
    rest: Floats  # Φ of the rest
    target: Floats  # y of the row
    own: float  # its K + λ
    inverse: Floats  # (K + λI)⁻¹ of the rest
    dual: Floats  # that times Y
    seen: Floats  # ΦQ
    among: Floats  # ΦQΦᵀ

    def __call__(self, tried: Floats) -> Floats:
        """For encoded rows (n, cells + 1)."""
        kernel = tried @ self.rest.T
        through = kernel @ self.inverse
        dual = (self.target - kernel @ self.dual) / (self.own - (kernel * through).sum(1))[:, None]  # of the row
        at_rest, at_row = self.rest @ self.task.toward, tried @ self.task.toward
        product = (self.dual * at_rest).sum() + (dual * (at_row - through @ at_rest)).sum(1)  # tr(W Q W*ᵀ)
        among, across = self.among @ self.dual, tried @ self.seen.T
        inner = (
            ((tried @ self.task.second) * tried).sum(1)
            - 2.0 * (across * through).sum(1)
            + ((through @ self.among) * through).sum(1)
        )
        given = (self.dual * among).sum() + 2.0 * (dual * (across @ self.dual - through @ among)).sum(1)
        given = given + inner * (dual**2).sum(1)  # tr(W Q Wᵀ)
        losses: Floats = 1.0 - product * np.abs(product) / np.maximum(given * float(self.task.goal.squares), 1e-30)
        return losses
