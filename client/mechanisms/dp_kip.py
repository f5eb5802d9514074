"""DP-KIP, the private half: in each stage, the sum of clipped gradients over a Poisson sample of the records.

Event: one Gaussian over the sum of gradients of a fresh Poisson sample, `steps` times; all are reserved together.
Sensitivity: a sampled record adds the gradient of its own loss with respect to the support set's free pixels, divided
by `clip` and clipped to norm 1; `ClippedSum` enforces that in integers, and `SampledSum` that nobody is in a stage who
was not sampled for it. One record more or less changes a sum by that contribution, with probability `rate`.
Composition: σ, rate and the number of stages are fixed by the request, whatever support set a later stage is asked
with, so each has the same dominating pair of privacy losses, and these compose adaptively.
Public: class list, shape, the kernel, the support set of each stage (from the seed, or in the request), clip norm and
rate. Private: everything else: who was sampled, and how many.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import (
    Contribution,
    Contributions,
    Mechanism,
    independent_of_batch_position,
    padded,
)
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.descent import free_pixels, labels_of, start
from dpdd.common.methods.dp_kip.gradients import SupportSet
from dpdd.common.methods.dp_kip.kernels import FullyConnectedNTK, centred
from dpdd.common.methods.dp_kip.planning import BATCH, SUPPORT, layout
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from dpdd.common.privacy.privatise import Privatised, privatise
from dpdd.common.privacy.sampling import SampledSum
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class DPKIPMechanism(Mechanism[GradientSettings]):
    """Sums of clipped gradients over Poisson samples."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: GradientSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Sample, sum, privatise: the gradient of one step."""
        run = RunDescription.of(request)
        pixels = request.stage_input[SUPPORT] if request.stage else start(settings, run)
        contributions = _contributions(pixels, settings, run)
        batch, shape = BATCH, (BATCH, *request.shape)
        if not independent_of_batch_position(contributions, shape, len(run.classes)):
            batch = 1
        total = SampledSum(layout(settings, run), settings.rate, len(records), entropy)
        members = total.members
        for begin in range(0, len(members), batch):
            part = members[begin : begin + batch]
            labels = records.labels[part]
            rows, _ = contributions(*padded(records.read(part), labels, batch))
            total.add_members(part, rows[: len(part)], labels)
        progress("noisy gradients", request.stage + 1, settings.steps)
        assert isinstance(plan.event, Gaussian | PoissonGaussian | NonPrivate)
        return privatise(total, plan.event, entropy)


def _contributions(pixels: NDArray[np.float32], settings: GradientSettings, run: RunDescription) -> Contributions:
    """The gradient of each record's loss, of norm at most 1, at this support set."""
    classes, free = len(run.classes), torch.from_numpy(free_pixels(settings, run).ravel())
    targets = centred(torch.from_numpy(labels_of(settings, run)), classes)
    support = SupportSet.of(
        torch.from_numpy(pixels.copy()).double(),
        targets.double(),
        FullyConnectedNTK(settings.depth),
        settings.ridge,
    ).single()

    def contributions(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        with torch.no_grad():
            wanted = centred(torch.from_numpy(labels), classes)
            rows = support.gradients(torch.from_numpy(images), wanted).flatten(1)
            rows = rows[:, free] if settings.frozen else rows
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            return (rows / norms.clamp_min(settings.clip)).numpy(), {}

    return contributions


MECHANISM = DPKIPMechanism()
