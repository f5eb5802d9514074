"""Logistic regression on a table: a linear classifier over the one-hot cells of its columns.

Weights are (classes, cells + 1): one for every code of every column but the label, side by side in the schema's order,
and the class's constant last. A row falls into one cell of each column, so its logits are sums of as many weights.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> schema = TableSchema(label="sick", columns=(
...     Numeric(name="age", low=0, high=100, bins=4), Categorical(name="ward", categories=("heart", "lung")),
...     Categorical(name="sick", categories=("no", "yes"))))
>>> rows, labels = torch.tensor([[0.0, 0.0], [0.0, 1.0], [3.0, 0.0], [3.0, 1.0]]), torch.tensor([0, 0, 1, 1])
>>> weights = fit(rows, labels, schema, decay=0.01)
>>> weights.shape == weights_shape(schema), scorer(weights, schema)(rows).argmax(1).tolist()
(True, [0, 0, 1, 1])
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpdd.common.data.table.schema import TableSchema

_SEARCH = {"max_iter": 100, "history_size": 20, "tolerance_grad": 1e-5, "line_search_fn": "strong_wolfe"}
"""How L-BFGS goes on: the loss ends within 1e-5 of the least one."""


def weights_shape(schema: TableSchema) -> tuple[int, int]:
    """Of the weights of a classifier for this table."""
    return len(schema.classes), sum(column.size for column in schema.features) + 1


def scorer(weights: NDArray[np.float32] | Tensor, schema: TableSchema) -> Callable[[Tensor], Tensor]:
    """From rows of codes (N, columns) to a logit for every class; of a number that is no code it says anything.

    Each logit is added up in double precision, column by column: to the last bit the same, whatever the other rows are.
    """
    values = torch.as_tensor(weights).detach().double()
    cells, constant = values[:, :-1].T.contiguous(), values[:, -1]
    return lambda rows: _sums(cells, _places(rows, schema)) + constant


def fit(rows: Tensor, labels: Tensor, schema: TableSchema, decay: float) -> NDArray[np.float32]:
    """The weights that minimise mean cross entropy + decay/2 · ‖weights‖², the classes' constants left out of the norm.

    `labels` are classes (N) or probabilities (N, classes). Without a row it says the same of everything.
    """
    weights = torch.zeros(weights_shape(schema), dtype=torch.float64, requires_grad=True)
    if len(rows):
        places = _places(rows, schema)
        wanted = labels.double() if labels.is_floating_point() else labels
        optimiser = torch.optim.LBFGS([weights], **_SEARCH)  # type: ignore[arg-type]

        def loss() -> Tensor:
            optimiser.zero_grad()
            value = functional.cross_entropy(_sums(weights[:, :-1].T.contiguous(), places) + weights[:, -1], wanted)
            value = value + 0.5 * decay * weights[:, :-1].square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach().float().numpy()


def _sums(cells: Tensor, places: Tensor) -> Tensor:
    """For every row the sum of its cells' weights."""
    return functional.embedding_bag(places, cells, mode="sum")


def _places(rows: Tensor, schema: TableSchema) -> Tensor:
    """The cell of every code of every row."""
    sizes = torch.tensor([column.size for column in schema.features])
    return rows.long() + (sizes.cumsum(0) - sizes)
