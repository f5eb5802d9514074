"""The aggregation rules by name, and `aggregate`, which applies one. A new rule is one module and one entry here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpdd.common.errors import ConfigError
from dpdd.common.privacy.clipping import Layout
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.base import AggregationRule
from dpdd.server.aggregation.precision import by_precision, class_weights
from dpdd.server.aggregation.robust import class_weights as robust_class_weights
from dpdd.server.aggregation.robust import robustly, without_each
from dpdd.server.aggregation.sum import add_up

RULES: Mapping[str, AggregationRule] = {
    "sum": AggregationRule(add_up),
    "precision": AggregationRule(by_precision, needs_counts=True, weights=class_weights),
    "robust": AggregationRule(robustly, needs_counts=True, weights=robust_class_weights, without_each=without_each),
}


def aggregate(releases: Sequence[Release], layout: Layout, rule: str, weight: float | None) -> Statistics:
    """The statistics of all silos by `rule`; `weight` is what a record weighs in the method's counts, if it has any."""
    if rule not in RULES:
        raise ConfigError(f"there is no aggregation rule {rule!r}; known are {', '.join(RULES)}")
    return RULES[rule].apply(releases, layout, weight)
