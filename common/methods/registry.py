"""The methods that dpdd knows. A method is two modules and one entry here.

Its public half is a folder of `common/methods/` with a `method` module, its private half one module of the same name in
`client/mechanisms/`, which only the silo can import. Importing this module checks every public half (`base.Method`).

>>> method("dp-merf").family
'dp_merf'
>>> method("dp-magic")
Traceback (most recent call last):
dpdd.common.errors.ConfigError: there is no method 'dp-magic'; known are dm, dosser, dp-merf, ndpdc, psg, sps
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import Method, check_complete
from dpdd.common.methods.dp_merf.method import DPMERF
from dpdd.common.methods.matching.method import Matching
from dpdd.common.methods.sps.method import SPS

AnyMethod = Method[Any, Any]


def register(methods: Iterable[AnyMethod]) -> dict[str, AnyMethod]:
    """Methods by name; TypeError for one that is not whole, or whose name is taken."""
    known: dict[str, AnyMethod] = {}
    for entry in methods:
        check_complete(type(entry))
        if entry.name in known:
            raise TypeError(f"two methods are called {entry.name}")
        known[entry.name] = entry
    return known


METHODS = register(
    (
        SPS(
            "sps",
            "matched moments of a public network's activations",
            "Summarize, Privatize, Synthesize (SPS and SPS+)",
        ),
        DPMERF(
            "dp-merf",
            "random-feature mean embeddings and a generator",
            "Harder, Adamczewski and Park, AISTATS 2021",
        ),
        Matching(
            "dosser",
            "mean features of random networks in a public subspace, drawn once and matched for long",
            "Dosser: decoupled optimisation and sampling, subspace error reduction",
        ),
        Matching(
            "ndpdc",
            "mean features of random networks, one optimisation step per noisy draw",
            "NDPDC: differentially private dataset condensation",
            {"schedule": "coupled", "dimensions": 0, "draws": 1000, "rate": 0.01, "networks": 0},
        ),
        Matching(
            "psg",
            "gradients of random networks, one optimisation step per noisy draw",
            "PSG: private set generation, Chen, Kerkouche and Fritz, NeurIPS 2022",
            {
                "signal": "gradients",
                "schedule": "coupled",
                "dimensions": 0,
                "draws": 500,
                "rate": 0.02,
                "width": 16,
                "networks": 0,
            },
        ),
        Matching(
            "dm",
            "distribution matching without privacy, as the upper end of the scale",
            "Zhao and Bilen, WACV 2023",
            {"dimensions": 0},
        ),
    )
)


def method(name: str) -> AnyMethod:
    """The method called `name`."""
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}; known are {', '.join(sorted(METHODS))}")
    return METHODS[name]
