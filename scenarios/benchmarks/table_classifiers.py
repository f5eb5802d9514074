"""``dpdd-sim bench-table-classifiers``: which classifier the releases of sps-table contain is the best.

All are made of one release, and of nothing else. Part of a table's training records is the silo, others of them judge;
test records are not looked at, so that what is chosen here can still be measured with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.cli import Commands, table
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.errors import ConfigError
from dpdd.common.randomness import uniforms
from dpdd.scenarios.options import number, whole_number
from dpdd.server.evaluation.base import Answers
from dpdd.server.evaluation.metrics import accuracy, macro_roc_auc

if TYPE_CHECKING:
    from dpdd.common.methods.sps_table.marginals import Marginals
    from dpdd.common.methods.sps_table.mixture import Mixture, NoisyTables
    from dpdd.common.methods.sps_table.settings import MethodSettings
    from dpdd.common.synthesis.statistics import Statistics

EPSILONS = (1.0, 0.2)
DELTA = 1e-5


@dataclass(frozen=True)
class Figures:
    """What one classifier reaches on the records that judge."""

    area: float
    right: float
    loss: float

    @classmethod
    def of(cls, logits: NDArray[np.floating], labels: NDArray[np.int64]) -> Figures:
        """ROC-AUC, the share of right answers, and the mean logarithmic loss, which wants calibrated probabilities."""
        answers = Answers.of_logits(logits)
        own = np.maximum(answers.scores[np.arange(len(labels)), labels], 1e-12)
        return cls(macro_roc_auc(answers, labels), accuracy(answers, labels), float(-np.log(own).mean()))


def add_to(commands: Commands) -> None:
    """Register `bench-table-classifiers`."""
    parser = commands.add(
        "bench-table-classifiers",
        _run,
        "compare the classifiers that a release of sps-table contains",
        "Takes some minutes. Looks at training records only.",
    )
    parser.add_argument("dataset", help="a table, such as made-patients")
    parser.add_argument("--silo", type=whole_number, default=20_000, help="at most so many records are the silo's")
    parser.add_argument("--judge", type=whole_number, default=6_000, help="at most so many others judge")
    parser.add_argument("--seeds", type=whole_number, default=3, help="repetitions, each with noise of its own")
    parser.add_argument("--epsilon", type=_epsilon, nargs="+", default=EPSILONS, help="one or more (1 and 0.2)")


def _run(options: argparse.Namespace) -> None:
    silo, judge = parts(options.dataset, options.silo, options.judge)
    print(
        f"classifiers in one release of sps-table, δ = {DELTA:g}: {options.dataset}, {len(silo)} training records are "
        f"the silo, {len(judge)} others judge, mean of {options.seeds}"
    )
    for epsilon in options.epsilon:
        runs = [compared(silo, judge, epsilon, number) for number in range(options.seeds)]
        means = {name: [np.mean([_numbers(run[name]) for run in runs], axis=0)] for name in runs[0]}
        rows = [[name, f"{m[0]:.3f}", f"{100 * m[1]:.1f}", f"{m[2]:.3f}"] for name, (m,) in means.items()]
        print(f"\n{table([f'ε = {epsilon:g}', 'ROC-AUC', '% right', 'log loss'], rows)}", flush=True)


def parts(dataset: str, silo: int, judge: int) -> tuple[LabelledRows, LabelledRows]:
    """Training records in random order, in two parts: where there are fewer, in the same shares."""
    from dpdd.server.run.data_section import DataSection
    from dpdd.server.run.own_data import public_test_rows, silo_records

    section = DataSection(dataset=dataset)
    test = public_test_rows(section, 0)
    if test is None:
        raise ConfigError(f"{dataset} has images, and this compares classifiers of tables")
    train, _ = silo_records(section, 0)
    order = np.argsort(uniforms(0, "silo and judge", len(train)), kind="stable")
    first = min(silo, round(len(train) * silo / (silo + judge)))
    rows, chosen = train.features[:], (order[:first], order[first : first + judge])
    one, other = (LabelledRows(rows[part], train.labels[part], test.schema) for part in chosen)
    return one, other


def compared(silo: LabelledRows, judge: LabelledRows, epsilon: float, seed: int) -> Mapping[str, Figures]:
    """The figures of each classifier, from one release at this ε; last, of one that learnt from the records."""
    import torch

    from dpdd.common.methods.base import RunDescription
    from dpdd.common.methods.sps_table import classifier, mixture
    from dpdd.common.methods.sps_table.marginals import marginals
    from dpdd.common.methods.sps_table.settings import MethodSettings, SynthesisSettings
    from dpdd.common.models import table_logistic
    from dpdd.common.progress import silent
    from dpdd.common.synthesis.priors import released_counts

    settings, synthesis, schema = MethodSettings(), SynthesisSettings(), silo.schema
    run = RunDescription(schema.classes, schema.shape, seed, table=schema)
    layout, statistics = marginals(settings, run), _released(silo, settings, epsilon, seed)
    tables = mixture.noisy_tables(statistics, layout)
    counts = released_counts([statistics], [settings.count_weight])
    assert counts is not None
    fitted = mixture.fit(tables, counts, layout, synthesis, seed, silent)
    teacher = classifier.learn(fitted, layout, tables.column_noise, synthesis.teacher_rows, seed, schema)
    hot, rows = layout.one_hot(judge.rows).astype(np.float64), torch.from_numpy(judge.rows)
    own = table_logistic.fit(torch.from_numpy(silo.rows), torch.from_numpy(silo.labels), schema, 1.0 / len(silo))
    logits = {
        "naive Bayes: the columns' marginals": _naive_bayes(tables, counts.counts, layout, hot),
        "Bayes: the mixture's densities": _bayes(fitted, hot),
        "logistic regression on the mixture's rows": teacher.logits(rows).numpy(),
        "logistic regression on the records": table_logistic.scorer(own, schema)(rows).numpy(),
    }
    return {name: Figures.of(each, judge.labels) for name, each in logits.items()}


def _released(silo: LabelledRows, settings: MethodSettings, epsilon: float, seed: int) -> Statistics:
    """What a silo with these records releases, with repeatable noise."""
    from dpdd.client.mechanisms.base import mechanism
    from dpdd.client.records.records import Records
    from dpdd.common.methods.registry import method
    from dpdd.common.privacy.entropy import SeededEntropy
    from dpdd.common.progress import silent
    from dpdd.common.synthesis.statistics import of_one_silo
    from dpdd.common.wire.request import ReleaseRequest

    request = ReleaseRequest(
        run="benchmark",
        method="sps-table",
        settings=settings.on_wire(),
        epsilon=epsilon,
        delta=DELTA,
        classes=silo.classes,
        shape=silo.schema.shape,
        public_seed=seed,
        table=silo.schema,
    )
    chosen = method(request.method)
    plan, records = chosen.plan(request, settings), Records(silo.rows, silo.labels)
    answer = mechanism(chosen).run(records, request, settings, plan, SeededEntropy(seed), silent)
    return of_one_silo(answer.arrays, answer.event)


def _naive_bayes(
    tables: NoisyTables, counts: NDArray[np.float64], layout: Marginals, hot: NDArray[np.float64]
) -> NDArray[np.float64]:
    """From the marginals of columns alone; each cell gets as many records more as its noise is wide."""
    smooth = np.maximum(tables.columns, 0.0) + tables.column_noise
    for cells in layout.cells:
        smooth[:, cells] /= smooth[:, cells].sum(1, keepdims=True)
    logits: NDArray[np.float64] = np.log(np.maximum(counts, 1.0)) + hot @ np.log(smooth).T
    return logits


def _bayes(fitted: Mixture, hot: NDArray[np.float64]) -> NDArray[np.float64]:
    """log (records · Σ_k π_k Π_j p_kj(x_j)) of every class."""
    with np.errstate(divide="ignore"):
        terms = np.log(fitted.shares) + np.einsum("nd,ckd->nck", hot, np.log(np.maximum(fitted.cells, 1e-6)))
    logits: NDArray[np.float64] = np.log(fitted.records) + np.logaddexp.reduce(terms, axis=2)
    return logits


def _numbers(figures: Figures) -> tuple[float, float, float]:
    return figures.area, figures.right, figures.loss


def _epsilon(text: str) -> float:
    return number(text, 0.0, 32.0, "ε above 0 and up to 32")
