"""The noise of every segment, at 0.95, 1 and 1.05 times its scale: only the middle one may pass.

    python -m tests.methods.measure_noise

A release of few classes has few counts, which say little of their noise. So there are many classes here, and as many
releases as bring each segment to the numbers that find a twentieth.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np

from dpdd.common.cli import table
from dpdd.common.data.table.columns import Categorical
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.methods.base import DataKind, Method, RunDescription
from dpdd.common.methods.registry import METHODS, method, query
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.noise_tests import numbers_needed
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.scenarios.audit.noise import SegmentNoise, noise_of_segments

CLASSES = 1000
FEW = 20
"""Classes of methods whose numbers grow with other things."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "dp-merf": {"features": 8},
    "sps": {"features": 32, "picture": 0, "stages": 2, "count_weight": 0.2},
    "kip-moments": {"features": 32, "picture": 0, "count_weight": 0.2},
    "private-evolution": {"rounds": 2, "population": 2, "features": 0, "count_weight": 0.3},
    "dp-cda": {"mixtures_per_class": 2, "order": 4.0, "class_size": 4},
    "ndpdc": {"draws": 2, "width": 4, "depth": 3, "rate": 1.0},
    "psg": {"draws": 1, "width": 4, "depth": 3, "rate": 1.0},
    "dp-kip": {"support_per_class": 2, "steps": 2, "rate": 1.0},
    "sps-table": {"count_weight": 0.3},
    "kip-table": {"count_weight": 0.3},
    "column-histograms": {},
}


def request_of(name: str, classes: int = CLASSES) -> ReleaseRequest:
    """A method at settings with few numbers per class."""
    classes = min(classes, FEW) if name in ("psg", "dp-kip") else classes
    names = tuple(f"class {number:04d}" for number in range(classes))
    shape, schema = (1, 28, 28) if name in ("sps", "kip-moments") else (1, 8, 8), None
    chosen = method(name) if name in METHODS else query(name)
    if DataKind.IMAGE not in chosen.data_kinds:
        columns = (
            Categorical(name="kind", categories=names),
            Categorical(name="ward", categories=("heart", "lung", "rest")),
            Categorical(name="sex", categories=("f", "m")),
        )
        schema = TableSchema(label="kind", columns=columns)
        shape = schema.shape  # type: ignore[assignment]
    run = RunDescription(names, shape, public_seed=5, table=schema)
    settings = chosen.settings(SETTINGS[name])
    return ReleaseRequest(
        run="noise",
        method=name,
        settings=(chosen.resolve(settings, run, 1.0, 1e-5) if isinstance(chosen, Method) else settings).on_wire(),
        epsilon=1.0,
        delta=1e-5,
        classes=names,
        shape=shape,
        public_seed=5,
        kind=Kind.STATISTICS,
        table=schema,
    )


def measured(request: ReleaseRequest, factor: float, releases: int) -> list[SegmentNoise]:
    """The tests of all segments where noise is so many times what is stated."""
    original = discrete_gaussian.sample

    def scaled(*given: Any) -> Any:
        return np.rint(factor * original(*given)).astype(np.int64)

    with mock.patch.object(discrete_gaussian, "sample", scaled):
        return noise_of_segments(request, releases, 1)[0]


def main() -> int:
    """Print a row for each segment; 1 unless the true scale passes everywhere, and the others fail everywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("names", nargs="*", help="of methods; all, if none is named")
    options = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)
    releases = -(-numbers_needed(0.05) // options.classes)
    print(f"$ python -m tests.methods.measure_noise {' '.join(sys.argv[1:])}".strip())
    print(f"{options.classes} classes, {releases} releases of each method at (1, 1e-5), pooled by segment\n")
    rows, wrong = [], 0
    for name in options.names or SETTINGS:
        tried = [measured(request_of(name, options.classes), factor, releases) for factor in (0.95, 1.0, 1.05)]
        for less, true, more in zip(*tried, strict=True):
            enough = true.test.finds <= 0.05
            wrong += not true.test.passes or (enough and (less.test.passes or more.test.passes))
            verdicts = ["passes" if each.test.passes else "fails" for each in (less, true, more)]
            scale, finds = f"{true.test.scale:.4f}", f"{100.0 * true.test.finds:.1f} %"
            rows.append([name, str(true.stage), true.segment, f"{true.test.numbers:,}", scale, finds, *verdicts])
            print(rows[-1], file=sys.stderr, flush=True)
    print(table(["method", "stage", "segment", "numbers", "scale", "finds", "0.95", "1", "1.05"], rows))
    print(f"\nsegments with a wrong verdict: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
