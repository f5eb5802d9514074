"""From a round's noisy votes to the next population: votes below the noise are dropped, parents drawn, elites kept.

>>> elected(np.array([[5.0, 0.9, -2.0], [0.1, 0.2, -0.3]]), least=1.0).tolist()
[[5.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
>>> drawn_in_proportion(np.array([3.0, 0.0, 1.0]), 4, start=0.5).tolist()
[0, 0, 0, 2]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.private_evolution.generator import Generator, Records
from dpdd.common.randomness import subseed, uniforms

Floats = NDArray[np.float64]


def elected(votes: Floats, least: float) -> Floats:
    """Votes (classes, members) of at least `least`, the others 0; in a class without any, all members are alike."""
    kept = np.where((votes >= least) & (votes > 0.0), votes, 0.0)
    nobody = ~kept.any(axis=1)
    kept[nobody] = 1.0
    return kept


def drawn_in_proportion(weights: Floats, count: int, start: float) -> NDArray[np.int64]:
    """So many places, each as often as its weight says, but for rounding; `start` in (0, 1) decides which way."""
    shares = np.cumsum(weights) / weights.sum()
    places = np.searchsorted(shares, (np.arange(count) + start) / max(count, 1), side="right")
    return np.minimum(places, len(weights) - 1).astype(np.int64)


def ordered(weights: Floats) -> NDArray[np.int64]:
    """Places by weight, the largest first; of equals the first."""
    return np.argsort(-weights, kind="stable").astype(np.int64)


def next_population(
    population: Records, weights: Floats, generator: Generator, *, elite: float, strength: float, seed: int
) -> Records:
    """Members of the classes one after another: those with the most votes, and variations of parents drawn by votes."""
    members = weights.shape[1]
    kept, parents, mates, of_class = [], [], [], []
    for label, own in enumerate(weights):
        places = label * members + ordered(own)[: min(round(elite * members), int((own > 0.0).sum()))]
        first, second = uniforms(seed, f"private evolution parents {label}", 2)
        missing = members - len(places)
        drawn = drawn_in_proportion(own, missing, first)
        others = drawn_in_proportion(own, missing, second)
        others = others[np.argsort(uniforms(seed, f"private evolution mates {label}", missing), kind="stable")]
        kept.append(places)
        parents.append(label * members + drawn)
        mates.append(label * members + others)
        of_class.append(np.full(missing, label))
    chosen, other = np.concatenate(parents), np.concatenate(mates)
    children = generator.variation(population[chosen], population[other], strength, subseed(seed, "children") >> 16)
    labels = np.concatenate(of_class)
    together = [np.concatenate([population[places], children[labels == label]]) for label, places in enumerate(kept)]
    return np.concatenate(together)


def selected(
    population: Records, weights: Floats, count: int, generator: Generator, *, draw: bool, strength: float, seed: int
) -> Records:
    """`count` records of every class: members by votes, each once; then variations of them."""
    members = weights.shape[1]
    parts = []
    for label, own in enumerate(weights):
        voted = int((own > 0.0).sum())
        keys = own
        if draw:  # without replacement, in proportion: the largest of u^(1/w) (Efraimidis and Spirakis)
            chance = uniforms(seed, f"private evolution selection {label}", members)
            keys = np.where(own > 0.0, np.exp(np.log(chance) / np.maximum(own, 1e-12)), 0.0)
        places = label * members + ordered(keys)[: min(count, voted)]
        parts.append(population[places])
        missing = count - len(places)
        if missing > 0:
            first, second = uniforms(seed, f"private evolution further {label}", 2)
            one, two = (label * members + drawn_in_proportion(own, missing, start) for start in (first, second))
            further = generator.variation(
                population[one], population[two[::-1]], strength, subseed(seed, f"further {label}") >> 16
            )
            parts.append(further)
    return np.concatenate(parts)
