"""`dpdd-server selftest`: the same small work on the CPU and on another device, compared: for who has a GPU.

Three tasks, on public images that ship with dpdd: images are synthesised by SPS (embedding and layer statistics), and
by matching; and the literature's ConvNet is trained on images and asked about others. The first two go through the very
code of a run (`Task.make`); evaluation runs on the CPU there, and its network is moved here. Random numbers are drawn
on the CPU, so both devices get the same.

Rounding differs, and steps of Adam make much of it where a gradient is near 0: pixels differ, and are worth the same.
So results are judged by the objective that they were made for, on the CPU in single precision. `apart` is by how much
the two differ in it, as a share of what the CPU gained.

>>> Comparison("a task", cpu=1.0, other=0.1, start=5.0, reached=1.0, others=1.2).apart
0.05
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching import specification as matching
from dpdd.common.methods.matching.settings import MethodSettings as MatchingSettings
from dpdd.common.methods.matching.settings import SynthesisSettings as MatchingSynthesis
from dpdd.common.methods.matching.synthesis import MatchTask, targets
from dpdd.common.methods.sps.feature_statistics import CLASS_SUMS, COUNT, SECOND_MOMENT
from dpdd.common.methods.sps.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.sps.specification import backbone, specification
from dpdd.common.methods.sps.synthesis import ImageTask
from dpdd.common.methods.sps.targets import mismatch
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.runner import Task
from dpdd.common.synthesis.statistics import Statistics
from dpdd.server.evaluation.convnet_dd import batches, optimise
from dpdd.server.evaluation.dsa import augment
from dpdd.server.evaluation.learner_settings import ConvNetDDSettings

BACKBONE, DATASET, SEED = "gray28", "fashion-slice", 1
LIMIT = 0.05
"""How far apart two devices may be. On the CPU, networks in half precision are 0.001 apart from single precision (as
they are in synthesis on a GPU), and a training on two threads 0.0002 from one on one thread."""
TRAINED, ASKED = 200, 200


@dataclass(frozen=True, eq=False)
class Work:
    """What comes out on a device, what it started from, and the objective of both: the lower, the better."""

    make: Callable[[torch.device], tuple[Tensor, Tensor]]
    objective: Callable[[Tensor], float]


@dataclass(frozen=True)
class Size:
    """How much is done."""

    per_class: int = 10
    synthesis: int = 12
    matching: int = 20
    training: int = 30
    width: int = 32


@dataclass(frozen=True)
class Comparison:
    """One task on both devices: wall seconds, and the objective at the start, on the CPU, and on the other device."""

    what: str
    cpu: float
    other: float
    start: float
    reached: float
    others: float

    @property
    def apart(self) -> float:
        """The difference in the objective, as a share of what the CPU gained."""
        gained, difference = self.start - self.reached, abs(self.others - self.reached)
        return round(difference / gained, 6) if gained > 0.0 else math.nan

    @property
    def agrees(self) -> bool:
        """Whether the devices are as close as rounding lets expect."""
        return self.apart <= LIMIT  # and so not where it is no number


def device_called(name: str) -> torch.device:
    """The device; ConfigError where this machine, or torch, has none of that name."""
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise ConfigError("the device meta computes nothing: choose one that does, such as cpu or cuda")
        torch.ones(2, device=device).sum().item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ConfigError(f"this machine has no device {name!r} that torch can use; `cpu` there always is") from None
    return device


def compare(device: torch.device, size: Size | None = None) -> Iterator[Comparison]:
    """Each task on the CPU and on `device`; what is set up once is set up before."""
    size = size or Size()
    public = benchmarks.load(DATASET, "train").subset(np.arange(TRAINED + ASKED))
    shown, others = public.subset(np.arange(TRAINED)), public.subset(np.arange(TRAINED, TRAINED + ASKED))
    works = {
        "synthesis by SPS": sps_work(shown, size),
        "synthesis by matching": matching_work(shown, size),
        "evaluation by a ConvNet": evaluation_work(shown, others, size),
    }
    cpu = torch.device("cpu")
    for what, work in works.items():
        for where in {cpu, device}:
            work.make(where)  # kernels are loaded, and constants made, when they are first needed
        (one, start), seconds = _timed(work, cpu)
        (other, _), others_seconds = _timed(work, device)
        yield Comparison(what, seconds, others_seconds, *map(work.objective, (start, one, other)))


def _steps_of(task: Task, steps: int) -> Callable[[torch.device], tuple[Tensor, Tensor]]:
    def make(device: torch.device) -> tuple[Tensor, Tensor]:
        start: Tensor | None = None
        for step, pyramid in enumerate(task.make(0, device), start=1):
            with torch.no_grad():
                if start is None:
                    start = pyramid.images().cpu()
                if step == steps:
                    return pyramid.images().cpu(), start
        raise ValueError(f"the task made fewer than {steps} steps")

    return make


def _run(data: LabelledImages, per_class: int) -> RunDescription:
    return RunDescription(data.classes, data.shape, SEED, per_class, backbone_sha256=_sha256())


def _sha256() -> bytes:
    return bytes.fromhex(backbone(BACKBONE).card.sha256)


def sps_work(data: LabelledImages, size: Size) -> Work:
    """Images from the sums of public images: their embeddings, and statistics of all layers."""
    settings = MethodSettings(
        backbone=BACKBONE, features=64, global_dimensions=8, class_dimensions=8, class_layers=1, stages=1
    )
    run = _run(data, size.per_class)
    spec = specification(settings, run, 0)
    one_hot = functional.one_hot(torch.from_numpy(data.labels), spec.classes).double()
    with torch.no_grad():
        rows, embedding = spec.measure(_floats(data))
    assert embedding is not None
    each, p = rows.double(), embedding.double()
    sums = {COUNT: spec.count_weight * one_hot.sum(0)[:, None], CLASS_SUMS: spec.weights[CLASS_SUMS] * one_hot.T @ p}
    sums[SECOND_MOMENT] = spec.weights[SECOND_MOMENT] * (p.T @ p).reshape(1, -1)
    for statistic in spec.statistics:
        members = torch.ones_like(one_hot[:, :1]) if statistic.scope == "global" else one_hot
        sums[statistic.name] = members.T @ each[:, spec.columns[statistic.name]]
    public = Statistics({name: array.numpy() for name, array in sums.items()}, 0.0, 1)
    how = SynthesisSettings(steps=size.synthesis, batch_per_class=size.per_class)
    task = ImageTask([public], settings, how, run, size.per_class)
    (look, *_), moments = task.goals
    assert moments is not None

    def objective(images: Tensor) -> float:
        with torch.no_grad():
            vectors, embeddings = look[0].measure(images)
            assert embeddings is not None
            features, pictures = moments.losses(embeddings, task.labels)
            layers = mismatch(vectors, task.labels, *look, how.class_weight)
        return float(layers + how.embedding_weight * features + how.picture_weight * pictures)

    return Work(_steps_of(task, size.synthesis), objective)


def matching_work(data: LabelledImages, size: Size) -> Work:
    """Images from the mean signals of public images."""
    settings = MatchingSettings(
        draws=4, networks=2, rate=1.0, width=size.width, dimensions=32, auxiliary_images=64, encoding="exact"
    )
    run = _run(data, size.per_class)
    signals = matching.signals(settings, matching.auxiliary(settings, {}, run), run)
    labels, classes = torch.from_numpy(data.labels), range(len(data.classes))
    with torch.no_grad():
        means = [
            signals.draw(number).of_class_means(_floats(data), labels, classes) for number in range(settings.draws)
        ]
    counts = np.bincount(data.labels, minlength=len(classes)).astype(np.float64)[:, None]
    sums = torch.stack(means).double().numpy() * counts * math.sqrt(1.0 - settings.count_share**2)
    weight = matching.signal_count_weight(settings)
    released = {"signal": sums.reshape(settings.draws * len(classes), -1), "count": weight * counts}
    how = MatchingSynthesis(steps=size.matching, classes_per_batch=len(classes))
    statistics = Statistics(released, 0.0, 1)
    made = torch.arange(len(classes)).repeat_interleave(size.per_class)

    def objective(images: Tensor) -> float:
        with torch.no_grad():
            found = [signals.draw(number).of_class_means(images, made, classes) for number in range(settings.draws)]
            return float((torch.stack(found) - targets(statistics, settings, len(classes))[0]).square().sum())

    return Work(_steps_of(MatchTask(statistics, settings, how, run), size.matching), objective)


def evaluation_work(shown: LabelledImages, others: LabelledImages, size: Size) -> Work:
    """What a ConvNet that learnt `shown` says of `others`; the objective is how unlikely it takes their labels for."""
    own = ConvNetDDSettings(runs=1, width=size.width, steps=size.training)
    images = _floats(shown)
    mean, std = images.mean(), images.std()
    images, unseen, kinds = (images - mean) / std, (_floats(others) - mean) / std, own.kinds(False)
    shape = (shown.shape[0], shown.shape[1], shown.shape[2])

    def make(device: torch.device) -> tuple[Tensor, Tensor]:
        labels, asked = torch.from_numpy(shown.labels).to(device), unseen.to(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            network = EvaluationConvNet(shape, len(shown.classes), own.width, padded=True).to(device)
        generator = torch.Generator().manual_seed(SEED)

        def loss(pick: Tensor) -> Tensor:
            changed = augment(images[pick], kinds, generator).to(device)
            return functional.cross_entropy(network(changed), labels[pick.to(device)])

        with torch.no_grad():
            start = network(asked).cpu()
        optimise(network, own, batches(len(images), own.batch, generator), loss, lambda *_: None)
        with torch.no_grad():
            return network.eval()(asked).cpu(), start

    right = torch.from_numpy(others.labels)
    return Work(make, lambda logits: float(functional.cross_entropy(logits, right)))


def _floats(data: LabelledImages) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(data.images)).float() / 255.0


def _timed(work: Work, device: torch.device) -> tuple[tuple[Tensor, Tensor], float]:
    """Results are on the CPU, so that a device has finished when they are here."""
    started = time.perf_counter()
    result = work.make(device)
    return result, time.perf_counter() - started


def disagreeing(comparisons: Sequence[Comparison]) -> list[str]:
    """The tasks in which the devices are too far apart."""
    return [each.what for each in comparisons if not each.agrees]
