"""The loops of the matching papers as plain programs, and the engine on the same settings: what `bench-matching` times.

The plain programs go one class at a time through a network of the usual modules, in single precision, with no care for
the order of summation; ours is the mechanism that silos run and the task that coordinators run. `Bench.check` makes
sure that both compute the same.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpdd.client.mechanisms.matching import MECHANISM
from dpdd.client.records.records import Records
from dpdd.common.config import validate
from dpdd.common.data import benchmarks
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching import subspace
from dpdd.common.methods.matching import synthesis as matching
from dpdd.common.methods.matching.settings import SIGNAL, MethodSettings, SynthesisSettings
from dpdd.common.methods.matching.specification import auxiliary as auxiliary_images
from dpdd.common.methods.matching.subspace import Subspace
from dpdd.common.methods.registry import method as method_called
from dpdd.common.models.random_net import RandomNet
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.sampling import poisson_sample
from dpdd.common.progress import silent
from dpdd.common.synthesis.siamese_augmentation import SiameseAugmentation
from dpdd.common.synthesis.statistics import Statistics, of_one_silo
from dpdd.common.wire.request import ReleaseRequest

SEED = 0


class PlainNet(nn.Sequential):
    """The papers' network of the usual modules, with the weights of one of ours, which nobody trains."""

    def __init__(self, network: RandomNet) -> None:
        blocks: list[nn.Module] = []
        for kernel in network.kernels:
            convolution = nn.Conv2d(kernel.shape[1], kernel.shape[0], 3, padding=1, bias=False)
            convolution.weight = nn.Parameter(kernel, requires_grad=False)
            blocks += [convolution, nn.InstanceNorm2d(len(kernel)), nn.ReLU(), nn.AvgPool2d(2)]
        super().__init__(*blocks, nn.Flatten())


@dataclass(frozen=True, eq=False)
class PlainExtractor:
    """Clipped signals of images: a network, and its subspace or the scale of its features."""

    network: PlainNet
    space: Subspace | None
    scale: float

    def __call__(self, images: Tensor) -> Tensor:
        """Clipped signals."""
        values: Tensor = self.network(images)
        values = values / self.scale if self.space is None else self.space(values)
        return values * torch.clamp(1.0 / values.norm(dim=1, keepdim=True), max=1.0)


@dataclass(frozen=True, eq=False)
class Bench:
    """One setting; `extractions` and `optimisations` are the programs to time, ours first."""

    records: Records
    request: ReleaseRequest
    method: MethodSettings
    synthesis: SynthesisSettings
    per_class: int

    @classmethod
    def of(cls, options: argparse.Namespace) -> Bench:
        """What the command's options ask for."""
        train = benchmarks.load(options.dataset, "train")
        names = ("draws", "networks", "rate", "width", "dimensions", "auxiliary_images")
        given = {name: getattr(options, name) for name in names}
        if given["dimensions"]:
            given["subspace_arithmetic"] = "integer"
        method = validate({**given, "encoding": "exact"}, MethodSettings, "options")
        request = ReleaseRequest(
            run="bench",
            method="dosser",
            settings=method.model_dump(mode="json"),
            epsilon=math.inf,
            delta=1e-5,
            classes=train.classes,
            shape=train.shape,
            public_seed=SEED,
        )
        synthesis = SynthesisSettings(steps=options.steps)
        return cls(Records(train.images, train.labels), request, method, synthesis, options.images_per_class)

    @property
    def classes(self) -> range:
        """All labels."""
        return range(len(self.request.classes))

    @property
    def images(self) -> int:
        """How many images are optimised."""
        return len(self.classes) * self.per_class

    @property
    def sampled(self) -> int:
        """How many records are in all draws together."""
        entropy = SeededEntropy(SEED)
        return sum(len(self._sample(entropy)) for _ in range(self.method.draws))

    def extractions(self) -> dict[str, Callable[[], object]]:
        """A silo's work."""
        before = {"ours, subspace in double precision": self._in_double().engine_sums} if self.method.dimensions else {}
        return {
            "ours": self.engine_sums,
            **before,
            "one class at a time": partial(self.plain_sums, network_per_class=False),
            "one network, one class at a time": partial(self.plain_sums, network_per_class=True),
        }

    def optimisations(self) -> dict[str, Callable[[], object]]:
        """A coordinator's work, with networks and subspaces at hand."""
        task = self._task(self.engine_sums())
        extractors = self._extractors()
        wanted, _ = matching.targets(task.statistics, self.method, len(self.classes))
        order = [number % self.method.draws for number in range(self.synthesis.steps)]
        return {
            "ours": partial(self._optimise, task),
            "one class at a time": partial(self.plain_optimisation, extractors, wanted, order),
        }

    def check(self) -> None:
        """AssertionError unless plain programs and engine give the same sums and the same gradients.

        In double precision, because a subspace fitted to features in whole numbers is another.
        """
        self._in_double()._check()

    def _in_double(self) -> Bench:
        return replace(self, method=self.method.model_copy(update={"subspace_arithmetic": "float64"}))

    def _check(self) -> None:
        released = self.engine_sums()
        task, extractors = self._task(released), self._extractors()
        ours = released.sums[SIGNAL] / math.sqrt(1.0 - self.method.count_share**2)
        for network_per_class in (False, True):
            theirs = self.plain_sums(network_per_class).numpy()
            np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=2e-3 * float(np.abs(theirs).max()))
        wanted, _ = matching.targets(released, self.method, len(self.classes))
        images = torch.rand(self.images, *self.request.shape, generator=torch.Generator().manual_seed(SEED))
        for number in range(self.method.draws):
            plain = [
                _gradient(partial(self._plain_loss, extractors, wanted, number, label), part)
                for label, part in enumerate(images.split(self.per_class))
            ]
            whole = _gradient(partial(self._engine_loss, task, wanted, number), images)
            # As a whole: where rounding pushes a pixel over the bend of a ReLU, its own gradient jumps.
            apart = float((whole - torch.cat(plain)).norm() / whole.norm())
            assert apart < 2e-3, f"gradients of draw {number} differ by {apart:.2g} of their norm"

    def engine_sums(self) -> Statistics:
        """All draws by the mechanism; without noise, as it can be in simulations only."""
        plan = method_called("dosser").plan(self.request, self.method)
        release = MECHANISM.run(self.records, self.request, self.method, plan, SeededEntropy(SEED), silent)
        return of_one_silo(release.arrays, release.event)

    def plain_sums(self, network_per_class: bool) -> Tensor:
        """All draws, class by class (draws × classes, length)."""
        entropy, auxiliary, sums = SeededEntropy(SEED), self._auxiliary(), []
        for number in range(self.method.draws):
            sample, augmentation = self._sample(entropy), self._augmentation(number)
            extractor = None
            for label in self.classes:
                if extractor is None or network_per_class:
                    extractor = self._extractor(number % self._networks, auxiliary)
                own = sample[self.records.labels[sample] == label]
                images = torch.from_numpy(self.records.read(own))
                sums.append(extractor(augmentation(images)).sum(dim=0))
        return torch.stack(sums)

    def plain_optimisation(
        self, extractors: Mapping[int, PlainExtractor], wanted: Tensor, order: Sequence[int]
    ) -> None:
        """A step for each of these draws, one class after another, each with its own update."""
        generator = torch.Generator().manual_seed(SEED)
        shape = (self.per_class, *self.request.shape)
        images = [torch.randn(shape, generator=generator).requires_grad_(True) for _ in self.classes]
        optimisers = [torch.optim.SGD([part], lr=1.0, momentum=0.5) for part in images]
        for number in order:
            for label in self.classes:
                loss = self._plain_loss(extractors, wanted, number, label, images[label])
                optimisers[label].zero_grad()
                loss.backward()
                optimisers[label].step()

    def _plain_loss(
        self, extractors: Mapping[int, PlainExtractor], wanted: Tensor, number: int, label: int, images: Tensor
    ) -> Tensor:
        extractor = extractors[number % self._networks]
        return (extractor(self._augmentation(number)(images)).mean(dim=0) - wanted[number, label]).square().sum()

    def _engine_loss(self, task: matching.MatchTask, wanted: Tensor, number: int, images: Tensor) -> Tensor:
        labels = torch.tensor(self.classes).repeat_interleave(self.per_class)
        means = task._signals.draw(number).of_class_means(images, labels, self.classes)
        return (means - wanted[number]).square().sum()

    def _task(self, released: Statistics) -> matching.MatchTask:
        """The coordinator's task, with every network and subspace made already."""
        run = RunDescription.of(self.request, self.per_class)
        task = matching.MatchTask(released, self.method, self.synthesis, run)
        for number in range(self._networks):
            task._signals.draw(number)
        return task

    def _optimise(self, task: matching.MatchTask) -> None:
        for batch in range(task.batches):
            for _ in task.make(batch, torch.device("cpu")):
                pass

    @property
    def _networks(self) -> int:
        return self.method.networks or self.method.draws

    def _auxiliary(self) -> Tensor:
        return torch.from_numpy(auxiliary_images(self.method, {}, RunDescription.of(self.request)))

    def _extractors(self) -> dict[int, PlainExtractor]:
        auxiliary = self._auxiliary()
        return {number: self._extractor(number, auxiliary) for number in range(self._networks)}

    def _extractor(self, number: int, auxiliary: Tensor) -> PlainExtractor:
        classes, method = len(self.classes), self.method
        drawn = RandomNet.draw(SEED, number, self.request.shape, method.width, method.depth, classes)
        network = PlainNet(drawn)
        values = network(auxiliary).double()
        if not method.dimensions:
            return PlainExtractor(network, None, float(values.norm(dim=1).median()))
        assert isinstance(method.dimensions, int)
        return PlainExtractor(network, subspace.fit(values, method.dimensions, SEED), 1.0)

    def _augmentation(self, number: int) -> SiameseAugmentation:
        return (
            SiameseAugmentation.draw(SEED, number, self.method.flips) if self.method.augment else SiameseAugmentation()
        )

    def _sample(self, entropy: SeededEntropy) -> NDArray[np.int64]:
        return poisson_sample(len(self.records), self.method.rate, entropy)


def _gradient(loss: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    images = images.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(loss(images), images)
    return gradient
