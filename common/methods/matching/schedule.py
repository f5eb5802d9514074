"""What tasks of matching share: which draws each step looks at, what a batch depends on, how its images are shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dpdd.common.config import Settings
from dpdd.common.methods.base import RunDescription
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import Pixels, fingerprint
from dpdd.common.synthesis.statistics import Statistics


class Task(Protocol):
    """What makes batches by settings of these two kinds."""

    @property
    def method(self) -> Settings:
        """What was released."""

    @property
    def settings(self) -> Settings:
        """How images are made of it."""


def draw_order(
    schedule: Literal["decoupled", "coupled"], draws: int, steps: int, per_step: int, generator: torch.Generator
) -> Iterator[list[int]]:
    """The draws of each step: all of them once, in order; or random ones, all equally often.

    >>> list(draw_order("coupled", 3, 9, 2, torch.Generator()))
    [[0], [1], [2]]
    >>> sorted(sum(draw_order("decoupled", 3, 3, 2, torch.Generator().manual_seed(1)), []))
    [0, 0, 1, 1, 2, 2]
    """
    if schedule == "coupled":
        yield from ([number] for number in range(draws))
        return
    waiting: deque[int] = deque()
    for _ in range(steps):
        while len(waiting) < per_step:
            waiting += torch.randperm(draws, generator=generator).tolist()
        yield [waiting.popleft() for _ in range(per_step)]


def fingerprint_of(
    task: Task, statistics: Statistics, run: RunDescription, device: str, further: Mapping[str, NDArray]
) -> str:
    """Of everything that decides a batch: the task's settings, the statistics, the run, and `further` arrays."""
    facts = {
        "method": task.method.model_dump(mode="json"),
        "settings": task.settings.model_dump(mode="json"),
        "classes": len(run.classes),
        "shape": run.shape,
        "seed": run.public_seed,
        "per class": run.images_per_class,
        "noise": statistics.noise,
        "device": device,
    }
    groups = (("sum", statistics.sums), ("stage_input", statistics.stage_input))
    arrays = {f"{kind} {name}": array for kind, group in groups for name, array in group.items()}
    return fingerprint(type(task), facts, {**arrays, **further})


def grid_of(batches: Sequence[Pixels], run: RunDescription) -> Image.Image:
    """A grid with a row per class."""
    shown = np.concatenate(batches)
    labels = np.arange(len(shown) // run.images_per_class).repeat(run.images_per_class)
    return LabelledSet(shown, labels, run.classes).preview(per_class=10)
