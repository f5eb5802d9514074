"""Published figures beside a comparison, by dataset: whose they are, at which claimed ε, from which paper's table.

They are read from the tables that `dpdd-sim reproduce` prints, so that each stands in the repository once.

>>> [each.words for each in published("fashion-mnist", (10,)) if each.method == "Dosser"]
["Dosser 81.6 ± 0.1 (ε = 1, 10 images per class; Dosser's paper, table 1)"]
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dpdd.scenarios.papers import dosser, geng_tables, kip_tables, sps

NAMESAKES = {"fashion-slice": "fashion-mnist"}
"""Datasets of ours that are a part of another: its figures are shown, which are for the whole of it."""

_DOSSER = ("mnist", "fashion-mnist", "cifar10")
_GENG = ("cifar10", "cifar100", "celeba")
_SIZES_DOSSER, _SIZES_GENG = (10, 50), (1, 10, 50)


@dataclass(frozen=True)
class Published:
    """A figure as printed: accuracy in %, the ε that the paper claims, images per class (None: not a small set)."""

    method: str
    printed: str
    epsilon: float
    images_per_class: int | None
    source: str

    @property
    def accuracy(self) -> float:
        """Without the deviation, as a share."""
        return float(self.printed.split()[0]) / 100.0

    @property
    def words(self) -> str:
        """All of it in a line."""
        size = f", {self.images_per_class} images per class" if self.images_per_class else ""
        return f"{self.method} {self.printed} (ε = {self.epsilon:g}{size}; {self.source})"


def published(dataset: str | None, sizes: Collection[int]) -> list[Published]:
    """Figures for a dataset of sets with so many images per class; the other sizes only where none has these."""
    known = list(_all(NAMESAKES.get(dataset or "", dataset)))
    right = [each for each in known if each.images_per_class is None or each.images_per_class in sizes]
    return sorted(right or known, key=lambda each: (each.epsilon, -each.accuracy))


def _all(dataset: str | None) -> Iterator[Published]:
    if dataset in _DOSSER:
        first = 1 + 2 * _DOSSER.index(dataset)
        for row in dosser.TABLE_1:
            for offset, size in enumerate(_SIZES_DOSSER):
                if _is_figure(row[first + offset]) and "without privacy" not in row[0]:
                    yield Published(row[0], row[first + offset], 1.0, size, "Dosser's paper, table 1")
    if dataset in _GENG:
        first = 3 * _GENG.index(dataset)
        for claimed, method, *figures in geng_tables.TABLE_1:
            for printed, size in zip(figures[first:], _SIZES_GENG, strict=False):
                if _is_figure(printed) and claimed != "∞" and method in ("DP-GENG", "PE", "PrivImage"):
                    yield Published(method, printed, float(claimed), size, "DP-GENG's paper, table 1")
    if dataset in ("mnist", "fashion-mnist"):
        first = 0 if dataset == "mnist" else 2
        for title, *figures in kip_tables.TABLE_3:
            for printed, epsilon in zip(figures[first:], (1.0, 10.0), strict=False):
                if title.startswith("DP-KIP") and ", 10 per class" in title:
                    method = title.removesuffix(", 10 per class")
                    yield Published(method, printed, epsilon, 10, "DP-KIP's paper, table 3")
    if dataset == "cifar10":
        for title, claimed, printed in sps.PRINTED:
            if title.startswith("CIFAR-10,") and "alone" not in title:
                method = title.removeprefix("CIFAR-10, ")
                yield Published(method, printed, float(claimed), None, "SPS+'s paper, public ImageNet-32")


def _is_figure(text: str) -> bool:
    return re.match(r"\d", text) is not None
