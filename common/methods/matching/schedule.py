"""Which draws each step of matching looks at, and how its images are shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from PIL import Image

from dpdd.common.methods.base import RunDescription
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import Pixels


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


def grid_of(batches: Sequence[Pixels], run: RunDescription) -> Image.Image:
    """A grid with a row per class."""
    shown = np.concatenate(batches)
    labels = np.arange(len(shown) // run.images_per_class).repeat(run.images_per_class)
    return LabelledSet(shown, labels, run.classes).preview(per_class=10)
