"""From noisy histograms to the columns of a final schema: post-processing, so it costs nobody anything.

| column | what is proposed |
| --- | --- |
| number | from where 1 % of the values are surely above, to where 99 % are, outwards to round numbers; on a logarithmic scale where the median is near the lower bound |
| date | the same, outwards to whole months, or to whole years where there are many |
| categorical | the categories that stand out of the noise; the others are counted into `other` |
| ordinal, and a label of categories | the values of the draft |
| `missing` | allowed, unless surely less than 1 % of the records have no value |

Nothing stands out of a column: it stays as it is in the draft, and a comment says so.
"""  # noqa: E501

from __future__ import annotations

import calendar
import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpdd.common.data.table.columns import Categorical, Column, Date, Numeric
from dpdd.common.methods.column_histograms.histogram import CERTAIN, Histogram, Quantile, record_count

TAIL = 0.01
"""The share of the values on either side that bounds may cut off: they are counted as the bound."""
RARE = 0.001
"""A category that fewer of the records have is counted into `other`, however sure its count is."""
FEW_MISSING = 0.01
_FEW_CELLS = 2
_NEAR = 0.1
_STEPS = 20
"""Bounds are multiples of a round number, about so many of which lie between them."""
_DAY_ZERO = datetime.date(1970, 1, 1)
_MANY_DAYS = 5 * 365


@dataclass(frozen=True)
class ProposedColumn:
    """A column of a final schema, and why: a sentence, and figures for programs."""

    column: Column
    why: str
    figures: dict[str, Any]


def proposals(found: Sequence[Histogram], label: str) -> tuple[ProposedColumn, ...]:
    """One for each column, in order."""
    counted, spread = record_count(found)
    return tuple(_proposed(each, max(counted, 1.0), spread, is_label=each.column.name == label) for each in found)


def _proposed(found: Histogram, records: float, spread: float, *, is_label: bool) -> ProposedColumn:
    within = CERTAIN * found.noise
    figures: dict[str, Any] = {"name": found.column.name, "within": within}
    missing, about = bool(found.column.missing), []
    if missing:
        figures["missing"] = found.missing
        missing = found.missing + within >= FEW_MISSING * records
        about = [f"{_percent(found.missing, records)} ± {100 * within / records:.2g} % have no value"]
    if found.numeric is not None:
        column, why, more = _bounds(found, records, spread)
    elif isinstance(found.column, Categorical) and not is_label:
        column, why, more = _frequent(found, records)
    else:
        column, why, more = found.column, _frequencies(found, records), _counts(found)
    same = column.model_copy(update={"missing": missing})
    return ProposedColumn(same, "; ".join([why, *about]), {**figures, **more})


def _bounds(found: Histogram, records: float, spread: float) -> tuple[Column, str, dict[str, Any]]:
    numeric = found.numeric
    assert numeric is not None
    if found.range is None:
        return found.column, "nothing stands out of the noise, so this is the draft", {"quantiles": []}
    cells = found.range[1] - found.range[0]
    low, median, high = (found.quantile(share) for share in (TAIL, 0.5, 1.0 - TAIL))
    column: Column
    if isinstance(found.column, Date):
        first, last = _whole(low.low, high.high - 1)
        first, last = max(first, found.column.first), min(last, found.column.last)
        column = Date(name=found.column.name, first=first, last=last, missing=found.column.missing)
    else:
        column = _number(numeric, low.low, median.value, high.high)
    rest, off = found.outside(records, spread)
    first_edge, last_edge = (float(numeric.edges[at]) for at in found.range)
    figures = {
        "range": [first_edge, last_edge],
        "outside": rest,
        "outside_within": CERTAIN * off,
        "quantiles": [{"share": q.share, "value": q.value, "from": q.low, "to": q.high} for q in (low, median, high)],
    }
    where = (
        f"from {_value(first_edge, found)} to {_value(last_edge, found)}, and {_percent(rest, records)} ± "
        f"{100 * CERTAIN * off / records:.2g} % elsewhere; of the former 1 % below {_shown(low, found)}, half below "
        f"{_shown(median, found)}, 99 % below {_shown(high, found)}"
    )
    if cells <= _FEW_CELLS:
        where += f"; all in {cells} bin{'s' if cells > 1 else ''} of the draft, so a narrower draft would show more"
    return column, where, figures


def _number(draft: Numeric, low: float, median: float, high: float) -> Numeric:
    """Between round numbers around `low` and `high`, on the scale that spreads the values better."""
    top = high - 1 if draft.integer else high  # the last edge of integers is one above them
    least = 1.0 if draft.integer else 0.0
    step = max(_round_step((top - low) / _STEPS), least)
    start, end = max(math.floor(low / step) * step, draft.low), min(math.ceil(top / step) * step, draft.high)
    logarithmic = start >= 0.0 and median - start < _NEAR * (end - start)
    if logarithmic and low > 0.0:  # the same digit of a smaller number
        fine = max(10.0 ** math.floor(math.log10(low)), least)
        start = max(math.floor(low / fine) * fine, draft.low)
    start, end = (float(f"{each:.12g}") for each in (start, end))
    if start >= end:
        start, end = low, high
    return Numeric(
        name=draft.name,
        low=start,
        high=end,
        scale="log" if logarithmic else "linear",
        integer=draft.integer,
        missing=draft.missing,
    )


def _round_step(least: float) -> float:
    """The smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, 10, ... that is not below `least`.

    >>> [_round_step(each) for each in (3.7, 0.11, 1.0, 70.0)]
    [5.0, 0.2, 1.0, 100.0]
    """
    power = 10.0 ** math.floor(math.log10(max(least, 1e-300)))
    return next(float(f"{each * power:.3g}") for each in (1.0, 2.0, 5.0, 10.0) if each * power >= least * (1.0 - 1e-9))


def _whole(first: float, last: float) -> tuple[datetime.date, datetime.date]:
    """Days outwards to whole months; to whole years, where there are years."""
    start, end = (_DAY_ZERO + datetime.timedelta(days=int(day)) for day in (first, last))
    if last - first > _MANY_DAYS:
        return start.replace(month=1, day=1), end.replace(month=12, day=31)
    return start.replace(day=1), end.replace(day=calendar.monthrange(end.year, end.month)[1])


def _frequent(found: Histogram, records: float) -> tuple[Column, str, dict[str, Any]]:
    draft = found.column
    assert isinstance(draft, Categorical)
    least = max(found.threshold * found.noise, RARE * records)
    rare = [
        name
        for name, count in zip(draft.categories, found.values, strict=True)
        if count < least and name != draft.other
    ]
    why = _frequencies(found, records)
    if not rare:
        return draft, why, _counts(found)
    other = draft.other or "other"
    kept = tuple(name for name in draft.categories if name not in (*rare, other))
    if not kept:
        return draft, f"{why}; nothing stands out of the noise, so this is the draft", _counts(found)
    column = Categorical(name=draft.name, categories=(*kept, other), other=other, missing=draft.missing)
    return column, f"{why}; counted into {other!r}: {', '.join(map(repr, rare))}", {**_counts(found), "rare": rare}


def _frequencies(found: Histogram, records: float) -> str:
    order = sorted(zip(found.values, found.column.value_names, strict=True), reverse=True)
    few = ", ".join(f"{name!r} {_percent(count, records)}" for count, name in order[:6])
    more = f" and {len(order) - 6} more" if len(order) > 6 else ""
    return f"{few}{more}, each ± {100 * CERTAIN * found.noise / records:.2g} %"


def _counts(found: Histogram) -> dict[str, Any]:
    return {"counts": dict(zip(found.column.value_names, found.values.tolist(), strict=True))}


def _percent(count: float, records: float) -> str:
    return f"{100 * min(max(count / records, 0.0), 1.0):.3g} %"


def _shown(quantile: Quantile, found: Histogram) -> str:
    return f"{_value(quantile.value, found)} ({_value(quantile.low, found)} to {_value(quantile.high, found)})"


def _value(number: float, found: Histogram) -> str:
    if isinstance(found.column, Date):
        return str(_DAY_ZERO + datetime.timedelta(days=int(number)))
    return f"{number:.4g}"
