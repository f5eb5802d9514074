"""DP-KIP, the private half: in each stage, the sum of clipped gradients over a Poisson sample of the records.

Event: one Gaussian over the sum of gradients of a fresh Poisson sample, `steps` times; all are reserved together.
Sensitivity: a sampled record adds the gradient of its own loss, divided by `clip` and clipped to norm 1, with respect
to the support set's free pixels (`dp-kip`), or to its images' features (`dp-kip-features`). `ClippedSum` enforces that
in integers; where a gradient is a sum over few vectors, `FactoredSum` enforces it on the whole numbers of its factors.
`SampledSum` sees to it that nobody is in a stage who was not sampled for it. One record more or less changes a sum by
its contribution, with probability `rate`.
With `marginals` (a table), a contribution has two parts: the gradient, clipped to norm √(1-a²), and the record's
one-hot row in the row of its class, of norm a; the layout has both, so `FactoredSum` enforces norm 1 for them together.
Composition: σ, rate and the number of stages are fixed by the request, whatever support set a later stage is asked
with, so each has the same dominating pair of privacy losses, and these compose adaptively.
Rows of a table are one-hot, so each is encoded by itself; one with a number that is no code adds nothing.
Public: class list, shape, the kernel and its features, the support set of each stage (from the seed, or in the
request), clip norm and rate. Private: everything else: who was sampled, and how many.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
from dpdd.common.methods.dp_kip.features import inputs_of, kernel_of, network_of
from dpdd.common.methods.dp_kip.gradients import SupportSet
from dpdd.common.methods.dp_kip.kernels import centred
from dpdd.common.methods.dp_kip.planning import BATCH, DENSE_BATCH, SUPPORT, layout
from dpdd.common.methods.dp_kip.row_marginals import gradient_norm, rows_beside
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.dp_kip.table_inputs import encoded, support_shape
from dpdd.common.methods.plan import Plan
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from dpdd.common.privacy.factored import Basis, FactoredSum, Factors, bound_of
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
        images = torch.from_numpy(np.array(request.stage_input[SUPPORT] if request.stage else start(settings, run)))
        sums = layout(settings, run)
        total = (
            _factored(records, images, settings, run, sums, entropy)
            if settings.factored
            else _dense(records, images, settings, run, sums, entropy)
        )
        progress("noisy gradients", request.stage + 1, settings.steps)
        assert isinstance(plan.event, Gaussian | PoissonGaussian | NonPrivate)
        return privatise(total, plan.event, entropy)


def _factored(
    records: Records, images: Tensor, settings: GradientSettings, run: RunDescription, sums: Layout, entropy: Entropy
) -> FactoredSum:
    """The sum of gradients with respect to the kernel's inputs, which are never made."""
    network, classes = network_of(settings, run), len(run.classes)
    unit = settings.clip / gradient_norm(settings)
    support = _support_set(network, images, settings, run)
    basis = Basis.of(support.inputs.numpy())
    support = support.single()

    def factors(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Factors:
        with torch.no_grad():
            inputs = inputs_of(network, torch.from_numpy(features))
            left, mixing = support.factors(inputs, centred(torch.from_numpy(labels), classes))
            return Factors(left.div_(unit), mixing.div_(unit), inputs)

    def whole_factors(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        grid = basis.to_grid(factors(features, labels), bound_of(sums.segments[0]))
        return grid.left.numpy(), {"": (grid.mixing.flatten(1).numpy(), grid.right.numpy())}

    total = FactoredSum(sums, settings.rate, len(records), entropy, basis)
    batch = BATCH if independent_of_batch_position(whole_factors, (BATCH, *support_shape(run)), classes) else 1
    for part, features, labels in _batches(records, run, total.members, batch):
        beside = (rows_beside(settings, run, features), labels) if settings.marginals else None
        total.add_factors(part, factors(features, labels), beside)
    return total


def _dense(
    records: Records, images: Tensor, settings: GradientSettings, run: RunDescription, sums: Layout, entropy: Entropy
) -> SampledSum:
    """The sum of gradients with respect to free pixels, which are made one by one."""
    contributions = _contributions(images, settings, run)
    batch = DENSE_BATCH[settings.kernel]
    if not independent_of_batch_position(contributions, (batch, *support_shape(run)), len(run.classes)):
        batch = 1
    total = SampledSum(sums, settings.rate, len(records), entropy)
    for part, features, labels in _batches(records, run, total.members, batch):
        rows, _ = contributions(features, labels)
        total.add_members(part, rows[: len(part)], labels[: len(part)])
    return total


def _batches(
    records: Records, run: RunDescription, members: NDArray[np.int64], batch: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]]:
    """Some members at a time, their records and labels, padded with zeros: who else is in must not matter."""
    for begin in range(0, len(members), batch):
        part = members[begin : begin + batch]
        yield part, *padded(encoded(run, records.read(part)), records.labels[part], batch)


def _support_set(
    network: FeatureNetwork | None, images: Tensor, settings: GradientSettings, run: RunDescription
) -> SupportSet:
    """The support set as the kernel sees it."""
    targets = centred(torch.from_numpy(labels_of(settings, run)), len(run.classes)).double()
    with torch.no_grad():
        inputs = inputs_of(network, images).double()
    return SupportSet.of(inputs, targets, kernel_of(settings), settings.ridge)


def _contributions(images: Tensor, settings: GradientSettings, run: RunDescription) -> Contributions:
    """The gradient of each record's loss with respect to free pixels, of norm at most 1, at this support set.

    Through features, the support images go forward once, and a record's gradient with respect to their features goes
    back: all images together, record after record.
    """
    classes, free = len(run.classes), torch.from_numpy(free_pixels(settings, run).ravel())
    network = network_of(settings, run)
    support = _support_set(network, images, settings, run).single()
    pixels = images.clone().requires_grad_(True)
    with torch.enable_grad():
        seen = inputs_of(network, pixels)

    def contributions(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        with torch.no_grad():
            inputs = inputs_of(network, torch.from_numpy(features))
            rows = support.gradients(inputs, centred(torch.from_numpy(labels), classes))
            if network is not None:
                back = [torch.autograd.grad(seen, pixels, each.clone(), retain_graph=True)[0] for each in rows]
                rows = torch.stack(back)
            rows = rows.flatten(1)[:, free] if settings.frozen else rows.flatten(1)
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            return (rows / norms.clamp_min(settings.clip)).numpy(), {}

    return contributions


MECHANISM = DPKIPMechanism()
