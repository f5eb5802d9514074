"""From a product to scores: train every learner that is asked for, let each pass once over real test data, measure.

>>> test = LabelledImages(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 0, 1, 1]), ("cat", "dog"))
>>> says_cat = lambda images: torch.tensor([[1.0, 0.0]]).expand(len(images), 2)
>>> scores([says_cat], test, ("accuracy", "macro-roc-auc"))
{'accuracy': Score(runs=(0.5,)), 'macro-roc-auc': Score(runs=(0.5,))}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.progress import Progress, silent
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Classifier, Score
from dpdd.server.evaluation.bundled import BUNDLED
from dpdd.server.evaluation.class_priors import adjusted
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.metrics import metric
from dpdd.server.evaluation.settings import EvaluationSection
from dpdd.server.evaluation.training_data import labels_of

if TYPE_CHECKING:
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.synthesis.product import Product

ACCURACY = "accuracy"
"""The metric that every run has, under a key of its own in `metrics.json`; continual figures are made of it."""


def evaluate(
    product: Product,
    test: LabelledImages,
    settings: EvaluationSection,
    public: Backbone | None,
    seed: int,
    progress: Progress = silent,
    trained: Mapping[str, Sequence[Classifier]] | None = None,
) -> dict[str, Any]:
    """What the product is worth to those who learn from it, and how good its own classifiers are; for `metrics.json`.

    `public` is what `dpdd.server.run.public_backbone` gives. `trained`: the learners, where they are already.
    """
    check_test(product, test)
    if trained is None:
        trained = train_learners(product, settings, public, seed, progress)
    measured = {name: scores(each, test, settings.metrics) for name, each in trained.items()}
    return {**described(measured, product, settings, public), **absent_classes(test)}


def train_learners(
    product: Product, settings: EvaluationSection, public: Backbone | None, seed: int, progress: Progress = silent
) -> dict[str, Sequence[Classifier]]:
    """All that `settings.learners` names, each trained once per run, and the classifiers that the product brings.

    Nobody learns from a product that is a model: it is the only one that is scored.
    """
    trained: dict[str, Sequence[Classifier]] = {}
    if isinstance(product, LabelledSet):
        networks: dict[str, list[Classifier]] = {}
        for name, learner in LEARNERS.items():
            if name not in settings.learners:
                continue
            own = learner.own(settings)
            if learner.networks not in networks:
                networks[learner.networks] = learner.train_networks(product, own, public, seed, progress)
            trained[name] = adjusted(learner.classifiers(networks[learner.networks]), product, own)
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
            parts.append(classifier(images).numpy())
    return np.concatenate(parts)


def scores(
    classifiers: Sequence[Classifier], test: LabelledImages, metrics: Sequence[str] = (ACCURACY,)
) -> dict[str, Score]:
    """The accuracy of the classifiers, one value each, and their scores in all other `metrics`."""
    return measured([logits_of(classifier, test) for classifier in classifiers], test.labels, metrics)


def measured(
    logits: Sequence[NDArray[np.floating]], labels: NDArray[np.int64], metrics: Sequence[str]
) -> dict[str, Score]:
    """The same, of logits that are there already; what is not defined for records of one class alone is left out."""
    found: dict[str, Score] = {}
    for name in dict.fromkeys((ACCURACY, *metrics)):
        with suppress(DataError):
            found[name] = Score(tuple(metric(name).function(each, labels) for each in logits))
    return found


def absent_classes(test: LabelledImages) -> dict[str, list[str]]:
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

    `accuracy` also says what each learnt from, and which backbone it started from.
    """
    accuracy: dict[str, dict[str, Any]] = {}
    others: dict[str, dict[str, Any]] = {}
    for name, by_metric in scores.items():
        for metric_name, score in by_metric.items():
            shown = accuracy if metric_name == ACCURACY else others.setdefault(metric_name, {})
            shown[name] = score.as_json()
        learner = LEARNERS.get(name)
        if learner is not None and isinstance(product, LabelledSet):
            accuracy[name]["labels"] = labels_of(product, learner.own(settings))
            if public is not None and learner.needs_backbone:
                accuracy[name]["backbone"] = public.card.name
    return {"accuracy": accuracy, "metrics": others} if others else {"accuracy": accuracy}


def check_test(product: Product, test: LabelledImages) -> None:
    """ConfigError unless there are test images, of the product's classes."""
    if len(test) == 0:
        raise ConfigError("there are no test images; at least one is needed")
    if len(product.classes) != len(test.classes):
        raise ConfigError(f"the product has {len(product.classes)} classes, but the test set {len(test.classes)}")
