"""Canaries: records that an attacker would choose, made from public facts alone.

A canary is worth most if it adds a contribution of norm 1 in a direction of its own, so that the others do not disturb
its guess. Which records do depends on the method. So a few families are made, a sample of each is put through the
mechanism, and the family is taken whose canaries stand out most at the noise of the request. That happens before any
coin is thrown, and no private record is involved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dpdd.client.auditing.contributions import Contributions, recorded
from dpdd.client.records.records import Records
from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.randomness import uniforms
from dpdd.common.wire.request import ReleaseRequest

TRIED = 240
"""Canaries of each family that are put through the mechanism beforehand."""

Draws = Callable[[str, tuple[int, ...]], NDArray[np.float64]]
"""Uniform numbers in [0, 1) for a purpose, of a shape: public ones, the same for the same seed."""
Family = Callable[[int, RunDescription, Draws], NDArray[np.float32]]


def canaries(family: str, count: int, run: RunDescription, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """So many canaries of a family, whose labels go round all classes: a label says nothing of the record."""

    def draws(purpose: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return uniforms(seed, f"canaries: {family}, {purpose}", math.prod(shape)).reshape(shape)

    features = families(run)[family](count, run, draws)
    return features.astype(np.float32), (np.arange(count) % len(run.classes)).astype(np.int64)


def families(run: RunDescription) -> Mapping[str, Family]:
    """What there is for this kind of data."""
    return IMAGES if run.kind is DataKind.IMAGE else ROWS


def best_family(request: ReleaseRequest, count: int, sigma: float) -> str:
    """The first family that stands out about most in the first stage of this request; `sigma` is its noise."""
    run = RunDescription.of(request)

    def worth(family: str) -> float:
        features, labels = canaries(family, min(count, TRIED), run, 0)
        return standing_out(recorded(Records(features, labels), request)[0], count, sigma)

    worths = {family: worth(family) for family in families(run)}
    return next(family for family, found in worths.items() if found > 0.9 * max(worths.values()))


def standing_out(contributions: Contributions, count: int, sigma: float) -> float:
    """The mean ratio of signal to noise of `count` canaries like these: |c|² to σ² and what the others do."""
    units = np.eye(len(contributions), dtype=np.float32)
    gram = np.stack([contributions.matched(contributions.total(unit)) for unit in units])
    for label in np.unique(contributions.labels):  # what a class has in common tells no two of them apart
        own = contributions.labels == label
        gram[own] -= gram[own].mean(axis=0)
        gram[:, own] -= gram[:, own].mean(axis=1, keepdims=True)
    norms = np.maximum(np.diag(gram), 1e-12)
    others = (np.square(gram).sum(axis=1) - np.square(norms)) * (count / len(norms))
    return float((norms / (sigma**2 + 0.25 * others / norms)).mean())


# Families


def _pixels(count: int, run: RunDescription, _draws: Draws) -> NDArray[np.float32]:
    """Grey but for one pixel, white in the first round of all places and black in the next."""
    images = np.full((count, math.prod(run.shape)), 128.0 / 255.0, np.float32)
    turn, place = np.divmod(np.arange(count) // len(run.classes), images.shape[1])
    images[np.arange(count), place] = np.where(turn % 2 == 0, 1.0, 0.0)
    return images.reshape(count, *run.shape)


def _checks(count: int, run: RunDescription, draws: Draws) -> NDArray[np.float32]:
    """Each pixel black or white."""
    return np.rint(draws("pixels", (count, *run.shape))).astype(np.float32)


def _blocks(count: int, run: RunDescription, draws: Draws) -> NDArray[np.float32]:
    """The same with pixels four times as large."""
    channels, height, width = run.image_shape
    small = np.rint(draws("blocks", (count, channels, -(-height // 4), -(-width // 4))))
    return np.repeat(np.repeat(small, 4, axis=2), 4, axis=3)[:, :, :height, :width].astype(np.float32)


def _waves(count: int, run: RunDescription, draws: Draws) -> NDArray[np.float32]:
    """One plane wave each."""
    channels, height, width = run.image_shape
    y, x = np.mgrid[:height, :width]
    pitch = np.pi * (2.0 * draws("pitches", (count, 2, 1, 1)) - 1.0)
    phase = 2.0 * np.pi * draws("phases", (count, 1, 1))
    wave = 0.5 + 0.5 * np.cos(pitch[:, 0] * y + pitch[:, 1] * x + phase)
    return np.repeat(wave[:, None].astype(np.float32), channels, axis=1)


def _leaves(count: int, run: RunDescription, draws: Draws) -> NDArray[np.float32]:
    """Dead leaves: overlapping discs, as statistics of photographs have it."""
    return dead_leaves(count, *run.image_shape, int(2.0**31 * draws("leaves", (1,))[0]))


def _rows(count: int, run: RunDescription, draws: Draws) -> NDArray[np.float32]:
    """Each code of each column as likely as any other."""
    sizes = np.array([column.size for column in run.columns])
    return np.floor(draws("codes", (count, len(sizes))) * sizes).astype(np.float32)


def _rare_rows(count: int, run: RunDescription, draws: Draws) -> NDArray[np.float32]:
    """Rows with every column at its last code but for a few."""
    last = np.array([column.size - 1 for column in run.columns])
    some = draws("places", (count, len(last))) < 3.0 / len(last)
    return np.where(some, _rows(count, run, draws), last).astype(np.float32)


IMAGES: Mapping[str, Family] = {
    "checks": _checks,
    "blocks": _blocks,
    "waves": _waves,
    "leaves": _leaves,
    "pixels": _pixels,
}
ROWS: Mapping[str, Family] = {"rows": _rows, "rare-rows": _rare_rows}
