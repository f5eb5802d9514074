"""In which order learners are shown: what the images alone are worth comes first.

ConvNets from scratch by what they learnt from: hard labels, where `convnet-dd` by the literature's protocol stands
first, then soft labels, then the teacher's augmentations, then a public pool. Then other networks and classifiers,
in the order of `LEARNERS`; then those that start from a public backbone; last what the product brings along.

>>> shown_order({"teacher": None, "probe": "hard", "krr-ntk": "hard", "convnet": "teacher", "convnet-dd": "hard"})
['convnet-dd', 'convnet', 'krr-ntk', 'probe', 'teacher']
"""

from __future__ import annotations

from collections.abc import Mapping

from dpdd.server.evaluation.base import POOL
from dpdd.server.evaluation.bundled import BUNDLED
from dpdd.server.evaluation.learners import LEARNERS

FROM_SCRATCH = ("convnet-dd", "convnet", "convnet-pool")
"""The ConvNet of the literature, or one like it, that has seen nothing else."""
_LABELS = ("hard", "soft", "teacher", POOL)


def shown_order(learnt_from: Mapping[str, str | None]) -> list[str]:
    """The names of those who are shown, from what each learnt from (None: nothing, it came with the product)."""
    return sorted(learnt_from, key=lambda name: _rank(name, learnt_from[name]))


def _rank(name: str, labels: str | None) -> tuple[int, int]:
    known = list(LEARNERS)
    if name not in LEARNERS:
        return len(_LABELS) + 2, list(BUNDLED).index(name) if name in BUNDLED else 0
    if name in FROM_SCRATCH and labels in _LABELS:
        return _LABELS.index(labels), FROM_SCRATCH.index(name)
    return len(_LABELS) + LEARNERS[name].needs_backbone, known.index(name)
