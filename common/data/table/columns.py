"""Columns of a table as public facts: what a cell may hold, and into which codes that is counted.

A column with `size` codes has `values` codes for values, numbered in their order, and where `missing` is allowed one
more, the last, for a cell without a value. Bins and bounds are declared, never taken from records.

>>> Numeric(name="age", low=17, high=90, bins=4, integer=True).edges.tolist()
[17.0, 36.0, 54.0, 73.0, 91.0]
>>> Categorical(name="sex", categories=("f", "m"), missing=True).size
3
"""

from __future__ import annotations

import datetime
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from dpdd.common.config import Settings

UNKNOWN = "?"
"""What `dpdd-client describe` writes for what is not public; alone, it is no list of categories."""
MOST_CODES = 4096
"""The most bins, categories or levels of a column."""
_WIDEST = 1e15
_EPOCH = datetime.date(1970, 1, 1)

Floats = npt.NDArray[np.float64]


class _Column(Settings):
    name: str = Field(description="the column's name in the file's header or in the query's result")
    missing: bool = Field(default=False, description="whether a cell may be empty; otherwise such a record is dropped")

    @property
    def values(self) -> int:
        """How many codes stand for values."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """How many codes there are, the one for a missing value included."""
        return self.values + self.missing

    @property
    def value_names(self) -> tuple[str, ...]:
        """What each code for a value is called: the category, or the bin's lowest and highest value."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not self.name or not self.name.isprintable() or self.name != self.name.strip():
            raise ValueError(f"name {self.name!r} must be printable text without spaces at its ends")
        return self


class _Binned(_Column):
    bins: Annotated[int, Field(ge=1, le=MOST_CODES)] = Field(default=16, description="at most how many bins")

    @property
    def edges(self) -> Floats:
        """The ends of the bins, each one closed below and open above; the last is closed on both sides."""
        raise NotImplementedError

    @property
    def values(self) -> int:
        """How many bins there are."""
        return len(self.edges) - 1


class Numeric(_Binned):
    """A number between public bounds, in bins of one width on its scale.

    The logarithmic scale is log(x) where `low` is above 0, and log(1 + x - low) otherwise; `symlog` is log(1 + x) to
    either side of 0: for numbers of which not even the order of magnitude is known. Bins of integers end between
    integers, so that there may be fewer than asked for; the lowest integer of log(1 + x - low) has a bin of its own:
    amounts that are mostly 0 keep that 0.
    """

    type: Literal["numeric"] = "numeric"
    low: float = Field(description="the public lower bound; what is below is counted as the bound")
    high: float = Field(description="the public upper bound; what is above is counted as the bound")
    scale: Literal["linear", "log", "symlog"] = Field(
        default="linear", description="on which scale bins have one width"
    )
    integer: bool = Field(default=False, description="whether values are whole numbers, and stay so when decoded")

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if not (-_WIDEST <= self.low < self.high <= _WIDEST):
            raise ValueError(f"low and high must be two numbers within ±{_WIDEST:.0e}, the smaller one first")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError("low and high of an integer column must be whole numbers")
        if not (np.diff(self.edges) > 0).all():
            raise ValueError("low and high are too close together for so many bins")
        return self

    @property
    def value_names(self) -> tuple[str, ...]:
        """`17 to 35`; a bin of one integer is called like it."""
        edges = self.edges
        if self.integer:
            lows, highs = edges[:-1].astype(np.int64), edges[1:].astype(np.int64) - 1
            return tuple(f"{low} to {high}" if low < high else str(low) for low, high in zip(lows, highs, strict=True))
        for digits in range(6, 18):  # as few as tell the bins apart
            texts = [f"{edge:.{digits}g}" for edge in edges]
            if len(set(texts)) == len(texts):
                break
        return tuple(f"{low} to {high}" for low, high in pairwise(texts))

    @property
    def edges(self) -> Floats:
        """The ends of the bins; of integers, the last one is `high + 1`."""
        top = self.high + 1 if self.integer else self.high
        apart = self.integer and self.scale == "log" and self.low <= 0 and self.bins > 1
        start = self.low + 1 if apart else self.low
        ends = np.linspace(self.to_scale(start), self.to_scale(top), self.bins + (not apart))
        inner = self.from_scale(ends[0 if apart else 1 : -1])
        if not self.integer:
            return np.concatenate([[self.low], inner, [top]])
        inner = np.ceil(inner - 1e-9 * np.maximum(1.0, np.abs(inner))) + 0.0  # no -0
        return np.unique(np.concatenate([[self.low], inner[(inner > self.low) & (inner < top)], [top]]))

    def to_scale(self, numbers: npt.ArrayLike) -> Floats:
        """Numbers on the scale on which bins have one width."""
        array = np.asarray(numbers, dtype=np.float64)
        if self.scale == "linear":
            return array
        if self.scale == "symlog":
            return np.sign(array) * np.log1p(np.abs(array))
        return np.log(array) if self.low > 0 else np.log1p(array - self.low)

    def from_scale(self, positions: Floats) -> Floats:
        """The inverse of `to_scale`."""
        if self.scale == "linear":
            return positions
        if self.scale == "symlog":
            return np.sign(positions) * np.expm1(np.abs(positions))
        return np.exp(positions) if self.low > 0 else np.expm1(positions) + self.low


class Date(_Binned):
    """A day between public bounds, in bins of as equal numbers of days as there can be."""

    type: Literal["date"] = "date"
    first: datetime.date = Field(description="the public first day; earlier ones are counted as this one")
    last: datetime.date = Field(description="the public last day; later ones are counted as this one")

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.first >= self.last:
            raise ValueError("first must be a day before last")
        return self

    @property
    def days(self) -> Numeric:
        """The same column as a number: days since 1970-01-01."""
        first, last = ((day - _EPOCH).days for day in (self.first, self.last))
        return Numeric(name=self.name, low=first, high=last, bins=self.bins, integer=True, missing=self.missing)

    @property
    def edges(self) -> Floats:
        """The ends of the bins in days since 1970-01-01."""
        return self.days.edges

    @property
    def value_names(self) -> tuple[str, ...]:
        """`2001-01-01 to 2001-12-31`; a bin of one day is called like it."""
        edges = self.edges.astype(np.int64)
        firsts, lasts = edges[:-1].astype("datetime64[D]"), (edges[1:] - 1).astype("datetime64[D]")
        ends = zip(firsts, lasts, strict=True)
        return tuple(str(first) if first == last else f"{first} to {last}" for first, last in ends)


class _Listed(_Column):
    categories: tuple[str, ...] = Field(description="the public list of values, as text")

    @property
    def values(self) -> int:
        """How many categories there are."""
        return len(self.categories)

    @property
    def value_names(self) -> tuple[str, ...]:
        """The categories."""
        return self.categories

    @model_validator(mode="after")
    def _check_categories(self) -> Self:
        if not 1 <= len(self.categories) <= MOST_CODES:
            raise ValueError(f"categories must list 1 to {MOST_CODES} values")
        if {*self.categories} - {"other"} == {UNKNOWN}:
            raise ValueError(f'categories must be filled in: "{UNKNOWN}" stands for what nobody has said yet')
        seen: set[str] = set()
        for category in self.categories:
            if not category or category != category.strip():
                raise ValueError(f"category {category!r} must be text without spaces at its ends")
            if category in seen:
                raise ValueError(f"categories must be different, but {category!r} is there twice")
            seen.add(category)
        return self


class Categorical(_Listed):
    """One of a public list of categories; `other` is the one of them into which unseen ones are counted."""

    type: Literal["categorical"] = "categorical"
    other: str | None = Field(default=None, description="the category that counts values outside the list, if any")

    @model_validator(mode="after")
    def _check_other(self) -> Self:
        if self.other is not None and self.other not in self.categories:
            raise ValueError(f"other must be one of the categories, which {self.other!r} is not")
        return self


class Ordinal(_Listed):
    """One of a public list of levels, from the lowest to the highest."""

    type: Literal["ordinal"] = "ordinal"


Column = Numeric | Date | Categorical | Ordinal
