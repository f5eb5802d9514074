"""What a dataset is worth to learners together: their mean, as published figures of tables are, and the best of them.

>>> found = {"lda": {"accuracy": Score((0.8,)), "f1": Score((0.5,))}, "mlp": {"accuracy": Score((0.9,))}}
>>> about = over_learners(found)
>>> about["mean_over_learners"]["accuracy"]
{'mean': 0.85..., 'std': 0.0, 'runs': [0.85...], 'learners': 2}
>>> about["best_learner"]["accuracy"]
{'learner': 'mlp', 'mean': 0.9}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpdd.server.evaluation.base import Score
from dpdd.server.evaluation.learners import LEARNERS


def over_learners(scores: Mapping[str, Mapping[str, Score]]) -> dict[str, Any]:
    """For `metrics.json`, by metric: the mean over learners, run by run; and who has the highest mean over runs.

    Classifiers that come with the product are not learners. The best one is chosen by the test records that it is
    measured with, so its figure is a little too high for new ones. Nothing for fewer than two learners.
    """
    learners = {name: by_metric for name, by_metric in scores.items() if name in LEARNERS}
    if len(learners) < 2:
        return {}
    means, best = {}, {}
    for metric in dict.fromkeys(name for by_metric in learners.values() for name in by_metric):
        own = {name: by_metric[metric] for name, by_metric in learners.items() if metric in by_metric}
        runs = np.mean([score.runs for score in own.values()], axis=0)
        means[metric] = {**Score(tuple(runs.tolist())).as_json(), "learners": len(own)}
        first = max(own, key=lambda name: own[name].mean)
        best[metric] = {"learner": first, "mean": own[first].mean}
    return {"mean_over_learners": means, "best_learner": best}
