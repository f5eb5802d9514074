"""How close a synthetic table is to a real one, on the codes of their schema: bins, categories, and missing values.

- **Marginal distance** of k columns: the total variation distance between both tables' shares of all combinations of
  their values, half the sum of absolute differences, from 0 (the same) to 1 (nothing in common). Columns by themselves,
  pairs and triples, the label among them; the mean over all, or over a public sample where there are many.
- **Correlation difference**: the mean absolute difference of Cramér's V over pairs of columns, a correlation between 0
  and 1 that is defined for any two columns of codes, with Bergsma's correction for its bias in small tables.
- **Coverage**: of the values that real rows have in any column, the share that synthetic rows have, too.

Finite samples of one distribution are not at distance 0: compare figures of one number of rows.

>>> rows = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
>>> marginal_distance((2, 2), rows, rows[[0, 0, 3, 3]], [(0,)]), marginal_distance((2, 2), rows, rows[[0, 3]], [(0, 1)])
(0.0, 0.5)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.table.schema import TableSchema
from dpdd.common.randomness import uniforms

MOST_PAIRS, MOST_TRIPLES = 2000, 200
"""Up to so many pairs and triples of columns all are looked at; of more, a public sample."""
_DENSE = 1 << 22
"""Tables of more cells are counted sparsely, so that memory is bounded by the number of rows."""

_DRAWS = 8
"""For every group of a sample; some are drawn twice."""

Codes = NDArray[np.integer[Any]]
_Counted = tuple[NDArray[np.int64], NDArray[np.int64]]  # cells that are not empty, and their counts


def fidelity(schema: TableSchema, synthetic: Codes, real: Codes) -> dict[str, Any]:
    """Every figure, from two tables of codes with all columns of the schema, none of them empty."""
    sizes, width = schema.sizes, len(schema.columns)
    columns = [marginal_distance(sizes, synthetic, real, [(at,)]) for at in range(width)]
    pairs = sample_of_columns(width, 2, MOST_PAIRS)
    triples = sample_of_columns(width, 3, MOST_TRIPLES)
    two_way, correlation = _of_pairs(sizes, synthetic, real, pairs)
    facts = {
        "rows": len(synthetic),
        "real_rows": len(real),
        "one_way": math.fsum(columns) / width,
        "two_way": two_way,
        "correlation_difference": correlation,
        "coverage": coverage(sizes, synthetic, real),
        "columns": dict(zip(schema.names, columns, strict=True)),
        "pairs": len(pairs),
        "triples": len(triples),
    }
    if triples:
        facts["three_way"] = marginal_distance(sizes, synthetic, real, triples)
    return facts


def marginal_distance(sizes: Sequence[int], first: Codes, second: Codes, groups: Iterable[Sequence[int]]) -> float:
    """The mean total variation distance over these groups of columns."""
    found = [_distance(_counted(sizes, first, group), _counted(sizes, second, group)) for group in groups]
    return math.fsum(found) / len(found)


def cramers_v(sizes: Sequence[int], codes: Codes, pair: Sequence[int]) -> float:
    """Bergsma's corrected Cramér's V of two columns: 0 where one of them is constant, or both are independent."""
    return _cramers_v(_counted(sizes, codes, pair), sizes[pair[1]])


def coverage(sizes: Sequence[int], synthetic: Codes, real: Codes) -> float:
    """Of the values that real rows have in any column, the share that synthetic rows have in that column, too."""
    had, shared = 0, 0
    for at in range(len(sizes)):
        (there, _), (too, _) = (_counted(sizes, codes, (at,)) for codes in (real, synthetic))
        had += len(there)
        shared += len(np.intersect1d(there, too, assume_unique=True))
    return shared / had


def sample_of_columns(width: int, size: int, most: int) -> list[tuple[int, ...]]:
    """All groups of `size` columns out of `width`, or, where there are more than `most`, a public sample of them."""
    if math.comb(width, size) <= most:
        return list(itertools.combinations(range(width), size))
    drawn = uniforms(0, f"groups of {size} out of {width} columns", _DRAWS * most * size).reshape(-1, size)
    groups: set[tuple[int, ...]] = set()
    for row in drawn.tolist():
        left = list(range(width))
        groups.add(tuple(sorted(left.pop(int(share * len(left))) for share in row)))
        if len(groups) == most:
            break
    return sorted(groups)


def _of_pairs(
    sizes: Sequence[int], synthetic: Codes, real: Codes, pairs: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """The mean distance of pairs, and the mean difference of their correlations; each is counted once."""
    distances, differences = [], []
    for pair in pairs:
        first, second = (_counted(sizes, codes, pair) for codes in (synthetic, real))
        distances.append(_distance(first, second))
        correlations = [_cramers_v(counted, sizes[pair[1]]) for counted in (first, second)]
        differences.append(abs(correlations[0] - correlations[1]))
    return math.fsum(distances) / len(pairs), math.fsum(differences) / len(pairs)


def _counted(sizes: Sequence[int], codes: Codes, group: Sequence[int]) -> _Counted:
    """How often every combination of these columns' values occurs."""
    cells = np.zeros(len(codes), np.int64)
    for at in group:
        cells *= sizes[at]
        cells += codes[:, at].astype(np.int64)
    if math.prod(sizes[at] for at in group) > _DENSE:
        there, counts = np.unique(cells, return_counts=True)
        return there, counts.astype(np.int64)
    counts = np.bincount(cells)
    there = np.flatnonzero(counts)
    return there, counts[there].astype(np.int64)


def _distance(first: _Counted, second: _Counted) -> float:
    shares = np.concatenate([first[1] / first[1].sum(), -second[1] / second[1].sum()])
    _, which = np.unique(np.concatenate([first[0], second[0]]), return_inverse=True)
    return float(np.abs(np.bincount(which, weights=shares)).sum() / 2.0)


def _cramers_v(counted: _Counted, columns: int) -> float:
    cells, counts = counted
    total = float(counts.sum())
    left, right = cells // columns, cells % columns
    of_left, of_right = (np.bincount(each, weights=counts) for each in (left, right))
    many = [int(np.count_nonzero(each)) for each in (of_left, of_right)]
    if min(many) < 2 or total < 2:
        return 0.0
    expected = of_left[left] * of_right[right] / total
    squared = float((counts**2 / expected).sum()) / total - 1.0
    squared = max(0.0, squared - (many[0] - 1) * (many[1] - 1) / (total - 1.0))
    corrected = [each - (each - 1) ** 2 / (total - 1.0) for each in many]
    return math.sqrt(min(1.0, squared / (min(corrected) - 1.0))) if min(corrected) > 1.0 else 0.0
