"""From a product to scores: train every learner that is asked for, let each answer real test records once, measure.

>>> test = LabelledImages(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 0, 1, 1]), ("cat", "dog"))
>>> says_cat = lambda images: torch.tensor([[1.0, 0.0]]).expand(len(images), 2)
>>> scores([says_cat], test, ("accuracy", "macro-roc-auc"))
{'accuracy': Score(runs=(0.5,)), 'macro-roc-auc': Score(runs=(0.5,))}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.methods.base import DataKind
from dpdd.common.progress import Progress, silent
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import POOL, Answering, Answers, CannotLearn, Classifier, Score
from dpdd.server.evaluation.bundled import BUNDLED
from dpdd.server.evaluation.class_priors import adjusted
from dpdd.server.evaluation.frozen_features import logits
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.metrics import metric
from dpdd.server.evaluation.over_learners import over_learners
from dpdd.server.evaluation.settings import EvaluationSection
from dpdd.server.evaluation.shown_order import shown_order

if TYPE_CHECKING:
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.synthesis.product import Product

TestData: TypeAlias = LabelledImages | LabelledRows
"""Real records."""

ACCURACY = "accuracy"
"""The metric that every run has, under a key of its own in `metrics.json`; continual figures are made of it."""
_ROWS_AT_ONCE = 20_000


class Trained(dict[str, Sequence[Classifier]]):
    """The classifiers by learner; and why some learners have none."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out: dict[str, str] = {}


def kind_of(product: Product) -> DataKind:
    """What the product's records are."""
    return DataKind.TABLE if isinstance(product, LabelledSet) and product.is_table else DataKind.IMAGE


def evaluate(
    product: Product,
    test: TestData,
    settings: EvaluationSection,
    public: Backbone | None,
    seed: int,
    progress: Progress = silent,
    trained: Trained | None = None,
) -> dict[str, Any]:
    """What the product is worth to those who learn from it, and how good its own classifiers are; for `metrics.json`.

    `public` is what `dpdd.server.run.public_backbone` gives. `trained`: the learners, where they are already.
    """
    check_test(product, test)
    if trained is None:
        trained = train_learners(product, settings, public, seed, progress)
    kind = kind_of(product)
    measured = {name: scores(each, test, settings.metrics_of(kind)) for name, each in trained.items()}
    return {
        **described(measured, product, settings, public),
        **(over_learners(measured) if kind is DataKind.TABLE else {}),
        **({"learners_left_out": trained.left_out} if trained.left_out else {}),
        **absent_classes(test),
    }


def train_learners(
    product: Product, settings: EvaluationSection, public: Backbone | None, seed: int, progress: Progress = silent
) -> Trained:
    """All that `settings` ask for, each trained once per run, and the classifiers that the product brings.

    Nobody learns from a product that is a model: it is the only one that is scored.
    """
    trained = Trained()
    if isinstance(product, LabelledSet):
        settings.check_kind(kind_of(product))
        asked = settings.learners_of(kind_of(product))
        networks: dict[str, list[Classifier]] = {}
        for name, learner in LEARNERS.items():
            if name not in asked:
                continue
            own = learner.own(settings)
            if learner.networks not in networks:
                try:
                    networks[learner.networks] = learner.train_networks(product, own, public, seed, progress)
                except CannotLearn as error:
                    trained.left_out[name] = str(error)
                    continue
            classifiers = learner.classifiers(networks[learner.networks])
            on_pool = learner.learnt_from(product, settings) == POOL  # whose labels assume the declared priors
            trained[name] = classifiers if on_pool else adjusted(classifiers, product, own)
    for name, bundled in BUNDLED.items():
        classifier = bundled.classifier_of(product)
        if classifier is not None:
            trained[name] = [classifier]
    return trained


def logits_of(classifier: Classifier, test: LabelledImages, batch: int = 500) -> NDArray[np.floating]:
    """What `classifier` says of every test image: (N, classes)."""
    parts = []
    for start in range(0, len(test), batch):
        images = torch.from_numpy(np.ascontiguousarray(test.images[start : start + batch])).float() / 255.0
        with torch.inference_mode():
            parts.append(logits(classifier, images).numpy())
    return np.concatenate(parts)


def answers_of(classifier: Classifier, test: TestData) -> Answers:
    """What `classifier` says of every test record."""
    if isinstance(test, LabelledImages):
        return Answers.of_logits(logits_of(classifier, test))
    parts = []
    for start in range(0, max(len(test), 1), _ROWS_AT_ONCE):
        rows = test.rows[start : start + _ROWS_AT_ONCE]
        if isinstance(classifier, Answering):
            parts.append(classifier.answers(rows))
        else:
            with torch.inference_mode():
                parts.append(Answers.of_logits(classifier(torch.from_numpy(rows)).numpy()))
    return Answers.joined(parts)


def scores(classifiers: Sequence[Classifier], test: TestData, metrics: Sequence[str] = (ACCURACY,)) -> dict[str, Score]:
    """The accuracy of the classifiers, one value each, and their scores in all other `metrics`."""
    once = {id(classifier): classifier for classifier in classifiers}  # who draws nothing is the same in every run
    answers = {key: answers_of(classifier, test) for key, classifier in once.items()}
    return measured([answers[id(classifier)] for classifier in classifiers], test.labels, metrics)


def measured(answers: Sequence[Answers], labels: NDArray[np.int64], metrics: Sequence[str]) -> dict[str, Score]:
    """The same, of answers that are there already; what is not defined for such records is left out."""
    found: dict[str, Score] = {}
    for name in dict.fromkeys((ACCURACY, *metrics)):
        with suppress(DataError):
            found[name] = Score(tuple(metric(name).function(each, labels) for each in answers))
    return found


def absent_classes(test: TestData) -> dict[str, list[str]]:
    """For `metrics.json`: the classes that no test record has, which averages over classes leave out; mostly nothing.

    >>> absent_classes(LabelledImages(np.zeros((1, 1, 8, 8), np.uint8), np.array([0]), ("cat", "dog")))
    {'absent_classes': ['dog']}
    """
    present = set(np.unique(test.labels).tolist())
    absent = [name for label, name in enumerate(test.classes) if label not in present]
    return {"absent_classes": absent} if absent else {}


def described(
    scores: Mapping[str, Mapping[str, Score]], product: Product, settings: EvaluationSection, public: Backbone | None
) -> dict[str, Any]:
    """Scores by learner and metric as `metrics.json` shows them: `accuracy`, and the others, if any, as `metrics`.

    `accuracy` also says what each learnt from, and which backbone it started from. Learners are in `shown_order`.
    """
    accuracy: dict[str, dict[str, Any]] = {}
    others: dict[str, dict[str, Any]] = {}
    labels = {
        name: LEARNERS[name].learnt_from(product, settings)
        if name in LEARNERS and isinstance(product, LabelledSet)
        else None
        for name in scores
    }
    for name in shown_order(labels):
        for metric_name, score in scores[name].items():
            shown = accuracy if metric_name == ACCURACY else others.setdefault(metric_name, {})
            shown[name] = score.as_json()
        learner = LEARNERS.get(name)
        if learner is not None and isinstance(product, LabelledSet):
            accuracy[name]["labels"] = labels[name]
            if public is not None and learner.needs_backbone:
                accuracy[name]["backbone"] = public.card.name
    return {"accuracy": accuracy, "metrics": others} if others else {"accuracy": accuracy}


def check_test(product: Product, test: TestData) -> None:
    """ConfigError unless there are test records, of the product's classes."""
    if len(test) == 0:
        what = "images" if isinstance(test, LabelledImages) else "rows"
        raise ConfigError(f"there are no test {what}; at least one is needed")
    if isinstance(test, LabelledRows) != (kind_of(product) is DataKind.TABLE):
        raise ConfigError("images are evaluated with images, and a table with rows")
    if isinstance(test, LabelledRows) and isinstance(product, LabelledSet) and test.schema != product.schema:
        raise ConfigError("the test rows have another schema than the product")
    if len(product.classes) != len(test.classes):
        raise ConfigError(f"the product has {len(product.classes)} classes, but the test set {len(test.classes)}")
