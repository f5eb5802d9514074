"""Evaluation at the silos: models of a run as a request brings them, and figures from the noisy histograms it gives.

Nobody needs a test set for it: silos count how often the models are right about their own records, and release the
counts with noise. `intervals` has the mathematics, `dpdd.server.run.evaluation_round` asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.cli import table
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.evaluation.settings import EvaluationSettings, segment_of
from dpdd.common.methods.registry import QUERIES
from dpdd.common.privacy.accounting import calibrate, gaussian_releases
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.server.aggregation.rules import aggregate
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.intervals import LEVEL, accuracy_interval, area_interval, balanced_interval
from dpdd.server.evaluation.settings import AtSilosSection

if TYPE_CHECKING:
    from dpdd.common.methods.evaluation.models import SentModel
    from dpdd.common.synthesis.product import Product

QUERY = "evaluation"
LIKELY = 0.8
"""The accuracy for which the width of an interval is foretold."""


def check(section: AtSilosSection, classes: Sequence[str]) -> None:
    """ConfigError where silos with these classes could not be asked so, before any silo is."""
    if section.bins and len(classes) != 2:
        raise ConfigError(
            f"evaluation.at_silos.bins is for two classes, and there are {len(classes)}: leave it out, and accuracy "
            "and balanced accuracy are measured"
        )


def sent_models(
    product: Product, trained: Mapping[str, Sequence[Classifier]], names: Sequence[str]
) -> dict[str, SentModel]:
    """Those of the named models that this run has and can send; of a learner with several runs, the first."""
    from dpdd.common.methods.evaluation.models import convnet_model, linear_model, teacher_model
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.product import ReleasedModel
    from dpdd.common.synthesis.table_teacher import TableTeacher
    from dpdd.common.synthesis.teacher import Teacher
    from dpdd.server.evaluation import linear
    from dpdd.server.evaluation.class_priors import Shifted
    from dpdd.server.evaluation.convnet import TrainedConvNet

    models: dict[str, SentModel] = {}
    for name in names:
        if name == "teacher":
            if isinstance(product.teacher, TableTeacher):
                models[name] = linear_model(product.teacher.weights)
            elif isinstance(product.teacher, Teacher):
                with suppress(ConfigError):  # a backbone that silos have no file of
                    models[name] = teacher_model(product.teacher)
        elif name == "linear":
            if isinstance(product, LabelledSet) and product.is_table and len(product):
                models[name] = linear_model(linear.learnt_weights(product))
        elif name == "model":
            if isinstance(product, ReleasedModel):
                models[name] = convnet_model(product.network, product.width)
        else:
            network = next(iter(trained.get(name, ())), None)
            shift = network.shift if isinstance(network, Shifted) else None
            network = network.classifier if isinstance(network, Shifted) else network
            if isinstance(network, TrainedConvNet):
                sent = convnet_model(network.network, network.width, float(network.mean), float(network.std))
                models[name] = sent if shift is None else sent.shifted(shift.numpy())
    return models


def evaluation_request(
    run: str, seed: int, section: AtSilosSection, asked: ReleaseRequest, models: Sequence[SentModel]
) -> ReleaseRequest:
    """What silos are asked that answered the request `asked`; ConfigError where they would refuse the models."""
    from dpdd.common.methods.evaluation.models import classifiers, in_request

    settings = EvaluationSettings(models=tuple(model.settings for model in models), bins=section.bins)
    classifiers(in_request(models), settings, RunDescription.of(asked))
    return ReleaseRequest(
        run=run,
        method=QUERY,
        kind=Kind.EVALUATION,
        settings=settings.on_wire(),
        epsilon=section.epsilon,
        delta=section.delta,
        classes=asked.classes,
        shape=asked.shape,
        public_seed=seed,
        stage_input=in_request(models),
        table=asked.table,
    )


def histograms(releases: Sequence[Release], request: ReleaseRequest) -> tuple[list[NDArray[np.float64]], float]:
    """For each model the noisy counts of all silos together (classes, cells), and the noise variance of each count."""
    chosen = QUERIES[request.method]
    settings = chosen.settings(request.settings)
    layout = chosen.layout(settings, RunDescription.of(request), 0)
    total = aggregate(releases, layout, "sum", None)
    counts = [total.sums[segment_of(number)] / settings.weight for number in range(len(settings.models))]
    return counts, (total.noise / settings.weight) ** 2


def figures(counts: NDArray[np.float64], variance: float, classes: Sequence[str], bins: int) -> dict[str, Any]:
    """What `metrics.json` says of one model, from its noisy histogram."""
    right, wrong = counts[:, 0], counts[:, 1]
    each = variance
    if bins:
        half, each = bins // 2, variance * bins / 2
        low, high = counts[:, :half].sum(axis=1), counts[:, half:].sum(axis=1)
        right, wrong = np.array([low[0], high[1]]), np.array([high[0], low[1]])
    overall = accuracy_interval(float(right.sum()), float(wrong.sum()), len(classes) * each)
    shown: dict[str, Any] = {
        "records": float(counts.sum()),
        "accuracy": overall.as_json(),
        "balanced-accuracy": balanced_interval(right.tolist(), wrong.tolist(), each).as_json(),
        "per_class": {
            name: accuracy_interval(float(r), float(w), each).as_json()
            for name, r, w in zip(classes, right, wrong, strict=True)
        },
    }
    if bins:
        shown["roc-auc"] = area_interval(counts, variance).as_json()
    return shown


def described(releases: Sequence[Release], request: ReleaseRequest, names: Sequence[str]) -> dict[str, Any]:
    """The part `at_silos` of `metrics.json`: the figures of the models with these names, and of whom they are."""
    in_sample = sorted(release.silo for release in releases if not release.held_out)
    shown: dict[str, Any] = {
        "epsilon": request.epsilon if math.isfinite(request.epsilon) else None,
        "delta": request.delta,
        "confidence": LEVEL,
        "silos": sorted(release.silo for release in releases),
        "held_out": bool(releases) and not in_sample,
        "in_sample": in_sample,
        "models": {},
    }
    if releases:
        counts, variance = histograms(releases, request)
        bins = int(request.settings["bins"])
        for name, histogram in zip(names, counts, strict=True):
            shown["models"][name] = figures(histogram, variance, request.classes, bins)
    return shown


def expected_half_width(section: AtSilosSection, records: float, classes: int, silos: int, models: int) -> float:
    """Half the width of the interval of an accuracy of `LIKELY`, over so many records of all silos together.

    >>> section = AtSilosSection(epsilon=1.0, delta=1e-5)
    >>> [round(expected_half_width(section, n, classes=2, silos=3, models=1), 3) for n in (100, 1000, 10000)]
    [0.17, 0.029, 0.008]
    """
    sigma = 0.0 if math.isinf(section.epsilon) else calibrate(gaussian_releases(1), section.epsilon, section.delta)
    cells = section.bins or 2
    variance = classes * cells / 2 * silos * models * sigma**2
    interval = accuracy_interval(LIKELY * records, (1.0 - LIKELY) * records, variance)
    return (interval.high - interval.low) / 2


def expected_widths(
    section: AtSilosSection, classes: int, silos: int, models: int, counted: float | None = None
) -> str:
    """What the silos would be asked to spend, and how wide an interval that buys, for several numbers of records.

    `counted` is how many records the releases so far count, where they do: a silo that holds a fifth out evaluates on a
    quarter of them.
    """
    numbers = {100.0: "", 1000.0: "", 10000.0: ""}
    if counted is not None and counted >= 10.0:
        numbers |= {counted: "as many as the releases count", counted / 4: "where a fifth is held out"}
    rows = [
        [
            f"{number:,.0f}",
            f"± {100 * expected_half_width(section, number, classes, silos, models):.1f}",
            numbers[number],
        ]
        for number in sorted(numbers)
    ]
    budget = "no noise" if math.isinf(section.epsilon) else f"ε = {section.epsilon:g} and δ = {section.delta:g} each"
    what = f"{models} model{'s' if models > 1 else ''} at {silos} silo{'s' if silos > 1 else ''}, {budget}"
    header = ["records, all silos together", f"accuracy of {100 * LIKELY:.0f} %, within", ""]
    return f"before anybody spends on evaluation: {what}\n{table(header, rows)}"
