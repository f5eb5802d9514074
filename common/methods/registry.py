"""The methods that dpdd knows. A method is two modules and one entry here.

Its public half is a folder of `common/methods/` with a `method` module, its private half one module of the same name in
`client/mechanisms/`, which only the silo can import. Importing this module checks every public half (`base.Method`).
`QUERIES` are all that a silo may be asked for: methods; and evaluation and column histograms, which make no dataset.

>>> method("dp-merf").family
'dp_merf'
>>> " ".join(sorted(METHODS)[:7])
'dm dosser dp-cda dp-geng dp-kip dp-kip-features dp-merf'
>>> " ".join(sorted(METHODS)[7:])
'kip-moments kip-table ndpdc private-evolution psg sps sps-published sps-table'
>>> method("dp-magic")  # doctest: +ELLIPSIS
Traceback (most recent call last):
dpdd.common.errors.ConfigError: there is no method 'dp-magic'; known are dm, dosser, dp-cda, dp-geng, ...
>>> sorted(QUERIES.keys() - METHODS.keys())
['column-histograms', 'evaluation']
"""

from __future__ import annotations

import reprlib
from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, Method, Query, check_complete
from dpdd.common.methods.column_histograms.query import NAME as COLUMN_HISTOGRAMS
from dpdd.common.methods.column_histograms.query import ColumnHistograms
from dpdd.common.methods.dp_cda.method import DPCDA
from dpdd.common.methods.dp_geng.method import DPGENG
from dpdd.common.methods.dp_kip.method import DPKIP
from dpdd.common.methods.dp_kip.moments_method import KIPMoments
from dpdd.common.methods.dp_kip.table_method import KIPTable
from dpdd.common.methods.dp_merf.method import DPMERF
from dpdd.common.methods.evaluation.query import Evaluation
from dpdd.common.methods.matching.method import Matching
from dpdd.common.methods.private_evolution.method import PrivateEvolution
from dpdd.common.methods.sps.method import SPS
from dpdd.common.methods.sps_table.method import SPSTable
from dpdd.common.wire.request import Kind

AnyMethod = Method[Any, Any]
AnyQuery = Query[Any]
Q = TypeVar("Q", bound=AnyQuery)


def register(entries: Iterable[Q], taken: Iterable[str] = ()) -> dict[str, Q]:
    """Methods, or other queries, by name; TypeError for one that is not whole, or whose name is taken."""
    known: dict[str, Q] = {}
    for entry in entries:
        check_complete(type(entry))
        if entry.name in known or entry.name in taken:
            raise TypeError(f"two methods are called {entry.name}")
        known[entry.name] = entry
    return known


METHODS: dict[str, AnyMethod] = register(
    (
        SPS(
            "sps",
            "matched moments of a public network's activations",
            "Summarize, Privatize, Synthesize (SPS and SPS+)",
        ),
        SPS(
            "sps-published",
            "the same from the paper's own statistics: moments of layers, hard labels",
            "SPS+ as printed, at our scale (docs/sps.md says what differs)",
            {
                "features": 0,
                "picture": 0,
                "global_dimensions": 48,
                "class_dimensions": 48,
                "class_layers": 3,
                "clip": 1.0 / 12.0,
                "stages": 2,
                "first_share": 0.5,
            },
        ),
        KIPMoments(
            "kip-moments",
            "images whose kernel ridge regression fits the moments that SPS releases",
            "KIP's objective, by moments instead of gradients (docs/dp-kip.md)",
        ),
        DPKIP(
            "dp-kip",
            "a support set for kernel ridge regression, by noisy gradients",
            "DP-KIP, Vinaroz and Park, TMLR 2024 (FC-NTK or ScatterNet features)",
            data_kinds=frozenset({DataKind.IMAGE, DataKind.TABLE}),
        ),
        DPKIP(
            "dp-kip-features",
            "the same with gradients clipped in feature space, led back through the public Jacobian",
            "a variant of DP-KIP, and not the published algorithm (docs/dp-kip.md)",
            {"kernel": "scattering", "clip_in": "features"},
        ),
        DPCDA(
            "dp-cda",
            "noisy mixtures of a few records of one class each",
            "DP-CDA, Saha, Tonoy and Imtiaz, 2025",
            data_kinds=frozenset({DataKind.IMAGE, DataKind.TABLE}),
        ),
        DPGENG(
            "dp-geng",
            "generated images, matched to records under extractors trained on them, and guided by a DP-SGD expert",
            "DP-GENG, Shi et al., AAAI 2026",
        ),
        PrivateEvolution(
            "private-evolution",
            "synthetic records that private ones vote on, round after round",
            "Private Evolution, Lin et al., ICLR 2024 (Tab-PE for tables)",
            data_kinds=frozenset({DataKind.IMAGE, DataKind.TABLE}),
        ),
        SPSTable(
            "sps-table",
            "noisy marginals of a table's columns and their pairs, and a mixture that has them",
            "SPS's moments for one-hot rows (docs/sps-table.md)",
            data_kinds=frozenset({DataKind.TABLE}),
        ),
        KIPTable(
            "kip-table",
            "few rows whose kernel ridge regression fits the marginals that sps-table releases",
            "KIP's objective, by moments instead of gradients (docs/dp-kip.md)",
            data_kinds=frozenset({DataKind.TABLE}),
        ),
        DPMERF(
            "dp-merf",
            "random-feature mean embeddings and a generator",
            "Harder, Adamczewski and Park, AISTATS 2021",
            data_kinds=frozenset({DataKind.IMAGE, DataKind.TABLE}),
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

QUERIES: Mapping[str, AnyQuery] = ChainMap(
    METHODS,  # type: ignore[arg-type]  # read only, so that its values may be of a narrower type
    register(
        (
            Evaluation(
                "evaluation",
                "noisy histograms of a model's right and wrong answers",
                "the Gaussian mechanism on a histogram (docs/evaluation-at-silos.md)",
                release_kinds=frozenset({Kind.EVALUATION}),
                data_kinds=frozenset({DataKind.IMAGE, DataKind.TABLE}),
            ),
            ColumnHistograms(
                COLUMN_HISTOGRAMS,
                "noisy histograms of a table's columns, for the bounds and categories of a schema",
                "the Gaussian mechanism on histograms (docs/tables.md)",
                release_kinds=frozenset({Kind.STATISTICS}),
                data_kinds=frozenset({DataKind.TABLE}),
            ),
        ),
        METHODS,
    ),
)
"""Everything that a silo may be asked for."""


def method(name: str) -> AnyMethod:
    """The method called `name`."""
    if name not in METHODS:
        raise ConfigError(f"there is no method {reprlib.repr(name)}; known are {', '.join(sorted(METHODS))}")
    return METHODS[name]


def query(name: str) -> AnyQuery:
    """What a silo is asked for under `name`: a method, or a query that is none."""
    if name not in QUERIES:
        raise ConfigError(f"there is no method {reprlib.repr(name)}; known are {', '.join(sorted(QUERIES))}")
    return QUERIES[name]
