"""Coordinate descent on codes: its losses are those of the rows, and no single change of the result is better."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dpdd.common.methods.dp_kip import code_descent
from dpdd.common.methods.dp_kip.code_descent import improve
from dpdd.common.methods.dp_kip.kernels import centred, linear_weights
from dpdd.common.methods.dp_kip.moments import Goal

SIZES, CLASSES, RIDGE = (3, 2, 4), 3, 0.05
CELLS = sum(SIZES) + 1


def some_goal(seed: int = 1) -> Goal:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(CELLS, CELLS, generator=generator).double()
    return Goal.of(root.T @ root, torch.randn(CLASSES, CELLS, generator=generator).double())


def some_codes(seed: int = 2, rows: int = 6) -> np.ndarray:
    generator = np.random.Generator(np.random.PCG64(seed))
    return np.stack([generator.integers(0, size, rows) for size in SIZES], axis=1)


def one_hot(codes: np.ndarray) -> torch.Tensor:
    parts = [torch.eye(size)[codes[:, at]] for at, size in enumerate(SIZES)]
    return torch.cat([*parts, torch.ones(len(codes), 1)], dim=1).double()


def loss_of(codes: np.ndarray, labels: np.ndarray, goal: Goal) -> float:
    """Of kernel ridge regression on these rows, the plain way."""
    targets = centred(torch.from_numpy(labels), CLASSES).double()
    return float(goal.loss(linear_weights(one_hot(codes), targets, RIDGE)))


LABELS = np.arange(CLASSES).repeat(2)


@pytest.mark.parametrize("seed", range(5))
def test_the_losses_of_all_changes_of_a_row_are_those_of_kernel_ridge_regression(seed: int) -> None:
    goal, codes = some_goal(seed), some_codes(seed + 10)
    task = code_descent._Task(goal, LABELS, SIZES, RIDGE)
    for row in (0, 3):
        tried = np.array(list(itertools.product(*map(range, SIZES))))
        found = task._losses(task.one_hot(codes), row)(task.one_hot(tried))
        for candidate, loss in zip(tried, found, strict=True):
            changed = codes.copy()
            changed[row] = candidate
            assert loss == pytest.approx(loss_of(changed, LABELS, goal), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_at_the_end_no_other_code_in_any_cell_is_better(seed: int) -> None:
    goal, start = some_goal(seed), some_codes(seed)
    before = start.copy()
    codes = improve(start, LABELS, goal, SIZES, RIDGE, sweeps=100)
    assert (start == before).all()
    best = loss_of(codes, LABELS, goal)
    assert best < loss_of(start, LABELS, goal)
    for row, (column, size) in itertools.product(range(len(codes)), enumerate(SIZES)):
        for code in range(size):
            changed = codes.copy()
            changed[row, column] = code
            assert loss_of(changed, LABELS, goal) >= best - 1e-9


def test_no_sweep_leaves_the_rows_as_they_are() -> None:
    assert (improve(some_codes(), LABELS, some_goal(), SIZES, RIDGE, sweeps=0) == some_codes()).all()
