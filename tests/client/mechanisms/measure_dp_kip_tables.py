"""What marginals beside gradients are worth to `dp-kip` on Adult, judged on training records that are held out.

``python -m tests.client.mechanisms.measure_dp_kip_tables [--marginals 0 0.3] [--learning-rate 0.01] [--releases 2]``

20,000 training records are the silo, 3,000 others judge; ten rows of each class at (1, 1e-5), steps and rate of
`dpdd-sim run dp-kip-adult`. A line is the mean, over the twelve classifiers of tables, of the ROC-AUC of their hard
predictions and of their scores. Of one release: rows that are decoded as the method does it; and, with marginals, rows
that are chosen with one of its two parts alone, and rows that are only herded, for which no gradient was needed.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpdd.client import local_synthesis
from dpdd.client.records.records import Records
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip import row_marginals
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.synthesis.distilled_set import DistilledSetSettings
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.scenarios.benchmarks.table_classifiers import parts
from dpdd.server.evaluation.base import Answers
from dpdd.server.evaluation.classical import trained
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.metrics import macro_roc_auc
from dpdd.server.evaluation.table_learners import TABLE_LEARNERS

PER_CLASS, RUNS = 10, 2
SILO, JUDGE = 20_000, 3_000


def judged(rows: NDArray, labels: NDArray[np.int64], judge: LabelledRows) -> tuple[float, float]:
    """ROC-AUC of hard predictions and of scores, mean of the twelve classifiers."""
    product = LabelledSet(rows.astype(np.float32), labels, judge.classes, schema=judge.schema)
    found = []
    for learner in TABLE_LEARNERS:
        for classifier in trained(learner, product, LearnerSettings(runs=RUNS), seed=0):
            answers = classifier.answers(judge.rows)
            named = Answers(np.eye(len(judge.classes))[answers.named], answers.named)
            found.append([macro_roc_auc(each, judge.labels) / RUNS for each in (named, answers)])
    hard, scores = np.sum(found, axis=0) / len(TABLE_LEARNERS)
    return float(hard), float(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--marginals", type=float, nargs="+", default=[0.0, 0.3])
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--start-steps", type=int, default=20)
    parser.add_argument("--releases", type=int, default=2)
    parser.add_argument("--parts", action="store_true", help="each part of the decoding alone, too")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    silo, judge = parts("adult", SILO, JUDGE)
    print(
        f"Adult, {len(silo):,} records, {len(judge):,} judge; learning rate {arguments.learning_rate:g}, "
        f"start steps {arguments.start_steps}"
    )
    print(f"{'marginals':11}{'release':>8}{'rows':>30}{'AUC, hard':>11}{'AUC, scores':>13}")
    for share in arguments.marginals:
        for number in range(1, arguments.releases + 1):
            for title, (hard, scores) in made(silo, judge, share, number, arguments):
                print(f"{share:<11g}{number:>8}{title:>30}{hard:>11.3f}{scores:>13.3f}", flush=True)


def made(
    silo: LabelledRows, judge: LabelledRows, share: float, number: int, arguments: argparse.Namespace
) -> list[tuple[str, tuple[float, float]]]:
    """Figures of one release."""
    chosen = method("dp-kip")
    more = {"marginals": share, "start_steps": arguments.start_steps, "learning_rate": arguments.learning_rate}
    settings = chosen.settings({"steps": 100, "rate": 0.05, **(more if share else {"learning_rate": 0.05})})
    wanted = DistilledSetSettings(method=settings.on_wire(), synthesis={"average_last": 50}, images_per_class=PER_CLASS)
    request = ReleaseRequest(
        "tables",
        "dp-kip",
        wanted.on_wire(),
        1.0,
        1e-5,
        silo.classes,
        silo.schema.shape,
        number,
        kind=Kind.DISTILLED_SET,
        table=silo.schema,
    )
    answered = local_synthesis.run_stages(
        Records(silo.rows, silo.labels), request, chosen, settings, SeededEntropy(number), silent
    )

    def rows(left_out: Sequence[str] = (), *, herded: bool = False) -> tuple[float, float]:
        with pytest.MonkeyPatch.context() as patch:
            for name in left_out:
                patch.setattr(row_marginals, name, nothing(silo))
            if herded:
                patch.setattr(row_marginals, "improve", lambda start, *_: start)
            arrays = local_synthesis.synthesise_locally(answered, request, chosen, settings, silent).arrays
        return judged(arrays["rows"], arrays["labels"], judge)

    found = [("as decoded", rows())]
    if share and arguments.parts:
        found.append(("gradients alone", rows(["_naive_bayes"])))
        found.append(("marginals alone", rows(["_of_relaxed_set"])))
        found.append(("herded, no gradient needed", rows(herded=True)))
    return found


def nothing(silo: LabelledRows):  # type: ignore[no-untyped-def]
    """A classifier that says nothing."""
    run = RunDescription(silo.classes, silo.schema.shape, 0, table=silo.schema)
    width = row_marginals.cells_of(run).width + 1
    return lambda *_: torch.zeros(len(silo.classes), width).double()


if __name__ == "__main__":
    main()
