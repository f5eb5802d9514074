"""Who judges a scenario's datasets, where it names nobody.

A method may say who should: a set that was made with one kernel is judged with others, too, and by a ConvNet.

>>> judging(EvaluationSection(), ["kip-moments"]).learners
('convnet-dd', 'convnet', 'krr', 'krr-features', 'krr-ntk')
>>> judging(EvaluationSection(), ["dp-merf"]).learners is None
True

Learners of rows are the same for all methods: who has a table should leave this alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpdd.common.methods.base import DataKind
from dpdd.common.methods.registry import METHODS
from dpdd.common.models.choice import AUTO
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.settings import EvaluationSection


def judging(section: EvaluationSection, methods: Iterable[str], *, pool: bool = False) -> EvaluationSection:
    """The section with the learners of these methods; as it is where it has learners, or they have none of their own.

    With a public `pool` somebody learns from that, too.

    Where learners need a public backbone and none of the methods has one, it is the one for such images.
    """
    chosen = [METHODS[name] for name in methods if name in METHODS]
    wanted = {name for each in chosen for name in each.learners} | ({"convnet-pool"} if pool else set())
    if section.learners is not None or not wanted:
        return section
    wanted |= set(section.learners_of(DataKind.IMAGE))
    learners = tuple(name for name in LEARNERS if name in wanted)
    own = any(each.backbones(each.settings({})) for each in chosen)
    changes = {"learners": learners, "backbone": section.backbone or (None if own else AUTO)}
    return section.model_copy(update=changes)
