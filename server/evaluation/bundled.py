"""Classifiers that a product brings along, made from the same releases: they are scored, and learn nothing more.

A synthetic set may come with its teacher. A product that is a model has one learner: itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpdd.server.evaluation.base import Classifier

if TYPE_CHECKING:
    from dpdd.common.synthesis.product import Product


@dataclass(frozen=True)
class Bundled:
    """A classifier of a product: its name in `metrics.json`, its title for people, and where it is (None: nowhere)."""

    name: str
    title: str
    classifier_of: Callable[[Product], Classifier | None]


def _teacher(product: Product) -> Classifier | None:
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.teacher import Teacher
    from dpdd.server.evaluation.frozen_features import OnBackbone

    teacher = product.teacher if isinstance(product, LabelledSet) else None
    if isinstance(teacher, Teacher):
        return OnBackbone(teacher.network, teacher.backbone_sha256, teacher.logits_of_features)
    return None if teacher is None else teacher.logits


def _model(product: Product) -> Classifier | None:
    from dpdd.common.synthesis.product import ReleasedModel

    return product.logits if isinstance(product, ReleasedModel) else None


BUNDLED: Mapping[str, Bundled] = {
    each.name: each
    for each in (Bundled("teacher", "teacher", _teacher), Bundled("model", "the released model", _model))
}
"""By name, in the order in which they are shown."""
