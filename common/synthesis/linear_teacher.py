"""What all teachers are: linear classifiers that releases contain, whose scores are log probabilities of classes.

A teacher's last weight of each class is its constant: it takes in other class priors, and the shares of classes in
which silos differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpdd.common.synthesis.priors import log_shift


@dataclass(frozen=True, eq=False)
class LinearTeacher(ABC):
    """Weights (classes, inputs); the last input is `constant`, whatever the record."""

    weights: NDArray[np.float32]

    @property
    def classes(self) -> int:
        """How many it tells apart."""
        return len(self.weights)

    @property
    @abstractmethod
    def constant(self) -> float:
        """The input that the last weights are multiplied with."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What a data card says of it, beside the hash of its file."""

    @abstractmethod
    def logits(self, records: Tensor, /) -> Tensor:
        """Unnormalised log probabilities for records as learners see them."""

    @abstractmethod
    def probabilities(self, records: Tensor | NDArray[Any], /) -> Tensor:
        """Labels for many records (N, classes); DataError for what it is not for."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write ``teacher.safetensors`` into `folder`."""

    def with_priors(self, before: NDArray[np.float64], after: NDArray[np.float64]) -> Self:
        """The same classifier for class shares `after`, where this one is for `before`.

        Log probabilities contain the logarithm of a class's share; in its place comes another.
        """
        weights = self.weights.astype(np.float64)
        weights[:, -1] += log_shift(before, after) / self.constant
        return replace(self, weights=weights.astype(np.float32))


T = TypeVar("T", bound=LinearTeacher)


def united(teachers: Sequence[T], counts: NDArray[np.float64], shares: NDArray[np.float64] | None = None) -> T:
    """One classifier of several silos', which may know different classes; `counts` (silos, classes) are their records.

    A class's weights are those of the silos that have it, in proportion to their records of it. A silo's scores contain
    the logarithm of the class's share in that silo; in its place comes that of the share in all silos together. So
    silos with the same classes in different shares give what one silo with everybody's records would, and silos that
    are alike give the mean of their teachers. (Silos that have different classes never compared them: no such claim.)

    With `shares`, the teachers are for equal class priors, and what they give is for these.
    """
    weights = np.stack([teacher.weights for teacher in teachers]).astype(np.float64)
    has, total = counts > 0.0, counts.sum(0)
    voices = np.where(total > 0.0, counts / np.where(total > 0.0, total, 1.0), 1.0 / len(teachers))
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.log(total / total.sum()) - np.log(counts / counts.sum(1, keepdims=True))
    if shares is None:
        weights[:, :, -1] += np.where(has, change, 0.0) / teachers[0].constant
    joined = replace(teachers[0], weights=np.einsum("sc,scd->cd", voices, weights).astype(np.float32))
    return joined if shares is None else joined.with_priors(np.full(len(shares), 1.0 / len(shares)), shares)
