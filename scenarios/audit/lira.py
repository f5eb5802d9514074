"""Membership inference on models that were trained on synthetic sets: the likelihood-ratio attack, LiRA, from outside.

Worlds are made: in each, half of the candidates are in a simulated silo, which answers a request as ever; the release
becomes a dataset, and a small network learns it. What the network says of each candidate, as the logit of its
confidence in the true label, is Gaussian over the worlds with the candidate and over those without it, roughly. Each
world in turn is the one attacked, and the others tell what the two Gaussians are; the log of their ratio is the score
(Carlini et al. 2022, online). The attacker sees the network alone, but makes as many worlds as it likes.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpdd.client.auditing.one_run import answers
from dpdd.client.auditing.scratch import scratch_silo
from dpdd.common.data import benchmarks
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import AnyMethod, method
from dpdd.common.methods.request_plan import settings_of
from dpdd.common.progress import Progress, silent
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.scenarios.audit.roc import Curve, roc

HIDDEN, STEPS, RATE, MOMENTUM = 64, 150, 0.05, 0.9
"""The network that learns: one hidden layer, and its descent, all images at once."""


@dataclass(frozen=True)
class LiraSetting:
    """A few candidates of each class, and a method whose mixtures hold a record or two: what is easy to attack."""

    worlds: int = 64
    candidates: int = 200
    seed: int = 0
    method: str = "dp-cda"
    mixtures: int = 20

    def __post_init__(self) -> None:
        if self.worlds < 8 or self.candidates < 20:
            raise ConfigError("the attack needs 8 worlds and 20 candidates at the least")


def attacked(setting: LiraSetting, epsilon: float, progress: Progress = silent) -> Curve:
    """The curve of the attack where releases are made at this ε; ∞ stands for no noise."""
    train = benchmarks.load("fashion-slice", "train")
    order = np.random.Generator(np.random.PCG64([setting.seed, 1])).permutation(len(train.labels))
    per_class = setting.candidates // len(train.classes)
    chosen = np.concatenate([order[train.labels[order] == label][:per_class] for label in range(len(train.classes))])
    images, labels = (train.images[chosen] / 255.0).astype(np.float32), train.labels[chosen]
    present = np.random.Generator(np.random.PCG64([setting.seed, 2])).random((setting.worlds, len(labels))) < 0.5
    scores = np.empty(present.shape)
    for world, inside in enumerate(present):
        progress("making worlds", world, setting.worlds)
        synthetic = _synthetic(setting, epsilon, images[inside], labels[inside], train.classes, world)
        scores[world] = _logits(synthetic, images, labels, world)
    progress("making worlds", setting.worlds, setting.worlds)
    return roc(likelihood_ratios(scores, present), present)


def likelihood_ratios(scores: NDArray[np.float64], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each world and candidate, log N(score; with it) - log N(score; without it), both fitted to other worlds."""
    ratios = np.zeros(scores.shape)
    for world in range(len(scores)):
        others = np.arange(len(scores)) != world
        for inside, sign in ((True, 1.0), (False, -1.0)):
            own = present[others] == inside
            count = np.maximum(own.sum(axis=0), 1)
            mean = np.where(own, scores[others], 0.0).sum(axis=0) / count
            spread = np.sqrt(np.where(own, np.square(scores[others] - mean), 0.0).sum(axis=0) / count + 1e-2)
            ratios[world] += sign * (-0.5 * np.square((scores[world] - mean) / spread) - np.log(spread))
    return ratios


def _synthetic(
    setting: LiraSetting,
    epsilon: float,
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    world: int,
) -> LabelledSet:
    """One world's dataset, by the real path."""
    chosen: AnyMethod = method(setting.method)
    own = {"order": 1.0, "class_size": 10, "mixtures_per_class": setting.mixtures} if setting.method == "dp-cda" else {}
    run = RunDescription(classes, images.shape[1:], public_seed=world, images_per_class=setting.mixtures)
    settings = chosen.resolve(chosen.settings(own), run, epsilon, 1e-5)
    request = ReleaseRequest(
        run="lira",
        method=chosen.name,
        settings=settings.on_wire(),
        epsilon=epsilon,
        delta=1e-5,
        classes=classes,
        shape=run.shape,
        public_seed=world,
        kind=Kind.STATISTICS,
    )
    with tempfile.TemporaryDirectory(prefix="dpdd-audit-") as scratch:
        seed = setting.seed * 1_000_003 + world
        silo = scratch_silo(Path(scratch) / "audit", request, images, labels, seed)
        statistics = [each for _, each in answers(silo, request)]
    how = chosen.synthesis_settings({"denoise": False} if setting.method == "dp-cda" else {})
    made = chosen.synthesise(statistics, settings_of(request), how, replace(run, backbone_sha256=b""))
    if not isinstance(made, LabelledSet):
        raise ConfigError(f"{chosen.name} makes a model, not a set")
    return made


def _logits(
    synthetic: LabelledSet, images: NDArray[np.float32], labels: NDArray[np.int64], seed: int
) -> NDArray[np.float64]:
    """What a network that learned the set says of each image: log p / (1 - p) of its true label."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(math.prod(images.shape[1:]), HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, len(synthetic.classes)),
        )
    features = torch.from_numpy(np.asarray(synthetic.images, np.float32) / 255.0)
    targets = torch.from_numpy(np.asarray(synthetic.labels, np.int64))
    weights = list(network.parameters())
    moving = [torch.zeros_like(each) for each in weights]
    for _ in range(STEPS):
        loss = torch.nn.functional.cross_entropy(network(features), targets)
        with torch.no_grad():
            for weight, speed, slope in zip(weights, moving, torch.autograd.grad(loss, weights), strict=True):
                weight.sub_(RATE * speed.mul_(MOMENTUM).add_(slope))
    with torch.inference_mode():
        logs = torch.log_softmax(network(torch.from_numpy(images)).double(), dim=1)
    own = logs[torch.arange(len(labels)), torch.from_numpy(labels)].numpy()
    return np.asarray(own - np.log(-np.expm1(np.minimum(own, -1e-9))))
