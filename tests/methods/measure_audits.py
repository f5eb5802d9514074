"""Many seeded audits of every method at ε = 1 and 8: no bound may be above what is claimed.

    python -m tests.methods.measure_audits --runs 50

Small settings (`cases`), so that a run takes about a second. Coins and noise are new in each run, the canaries are not.
At the stated confidence, a bound that is as high as can be would be above the claim in one run of twenty.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dpdd.client.auditing.one_run import AuditPlan, AuditResult, audit
from dpdd.common.cli import table
from dpdd.common.wire.request import ReleaseRequest
from tests.methods.audits import plain_gaussian, sps_of_ten
from tests.methods.cases import all_cases

CANARIES = 300
EPSILONS = (1.0, 8.0)
CASES = (
    "dp-merf",
    "dp-merf-table",
    "sps-table-table",
    "kip-table-table",
    "column-histograms-table",
    "sps-stages",
    "sps-published",
    "kip-moments-solved-labels",
    "private-evolution",
    "private-evolution-table",
    "dp-kip-table",
    "dp-kip-frozen",
    "dp-kip-features-frozen",
    "dp-cda",
    "dp-cda-as-published",
    "dp-geng-adaptive",
    "dosser-squares",
    "ndpdc",
    "psg",
)


def requests(names: list[str]) -> Iterator[tuple[str, ReleaseRequest, int, str | None]]:
    """What is audited: name, request at ε = 1, canaries and their family."""
    given: dict[str, tuple[ReleaseRequest, int]] = {
        "plain-gaussian": (plain_gaussian(1.0), 7840),
        "sps-ten-classes": (sps_of_ten(1.0), 4000),
    }
    given |= {str(case): (case.request(1.0), CANARIES) for case in all_cases() if str(case) in CASES}
    for name in names or given:
        request, count = given[name]
        yield name, request, count, None


def main() -> int:
    """Print a row for each method and ε; 1 where a bound is above the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("names", nargs="*", help="of cases; all, if none is named")
    options = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)
    rows, above = [], 0
    print(f"$ python -m tests.methods.measure_audits {' '.join(sys.argv[1:])}".strip(), flush=True)
    for name, request, count, family in requests(options.names):
        for epsilon in options.epsilon or EPSILONS:
            start = time.process_time()
            results: list[AuditResult] = []
            for seed in range(options.runs):
                plan = AuditPlan(canaries=count, seed=seed, noise_seed=seed, family=family)
                results.append(audit(replace(request, epsilon=epsilon), plan))
                family = results[-1].family
            one = np.array([each.one_run_bound for each in results])
            curve = np.array([each.curve_bound for each in results])
            wrong = sum(each.refuted for each in results)
            above += int((one > epsilon).sum()) + wrong
            figures = [f"{value:.2f}" for value in (one.mean(), one.max(), curve.mean(), curve.max())]
            seconds = (time.process_time() - start) / options.runs
            rows.append([name, f"{epsilon:g}", str(count), family or "", *figures, str(wrong), f"{seconds:.1f}"])
            print(f"  {rows[-1]}", file=sys.stderr, flush=True)
            family = None
    header = ["case", "ε", "canaries", "family", "one run: mean", "max", "curve: mean", "max", "refuted", "CPU s a run"]
    print(f"\n{options.runs} runs each, confidence 95 %\n\n{table(header, rows)}\n")
    print(f"bounds above what is claimed, and claims refuted: {above} of {len(rows) * options.runs} runs")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
