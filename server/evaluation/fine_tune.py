"""What a synthetic set is worth to somebody who also has a public backbone: a linear probe, fine-tuning, an ensemble.

All of it is post-processing of the synthetic set. The test set is looked at once, at the end: every default was fixed
without it, and there is no early stopping. `learners` trains all that a scenario asks for, the ConvNet from scratch
included.

Labels are the best that the set has and the settings allow (`convnet.labels_of`). Soft and hard ones come
with shifts (and mirror images where asked for) that are drawn anew at every step; lessons are taken as they are.

>>> import numpy as np, torch
>>> from dpdd.common.models.convnet import ConvNet, ConvNetArchitecture
>>> images = np.zeros((20, 1, 8, 8), np.uint8)
>>> images[10:, :, :4] = 255
>>> labels = np.repeat([0, 1], 10)
>>> made = LabelledSet(images, labels, ("dark", "light"))
>>> test = LabelledImages(images, labels, ("dark", "light"))
>>> network = ConvNet(ConvNetArchitecture(channels=1, height=8, width=8, classes=3, widths=(4, 6))).eval()
>>> linear_probe(made, network, test, EvaluationSection(probe=ProbeSettings(copies=2)), seed=0).mean
1.0
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.data import benchmarks
from dpdd.common.data.benchmarks import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.methods.registry import method
from dpdd.common.models import backbone as backbones
from dpdd.common.models.backbone import Backbone
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.models.training import augment
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.convnet import Accuracy, Classifier, accuracy, convnets, labels_of, material
from dpdd.server.evaluation.gsam import GSAM
from dpdd.server.run.requests import backbone_sha256
from dpdd.server.run.scenario import EvaluationSection, FineTuneSettings, ProbeSettings, Scenario

_AT_ONCE = 500
_TUNED = ("fine-tune", "ensemble")


def public_backbone(scenario: Scenario) -> Backbone | None:
    """What the scenario's probe and fine-tuning start from; None where it asks for neither.

    ConfigError where there is nothing that they could start from, so that a run can say so before it asks anybody.
    """
    evaluation = scenario.evaluation
    wanted = [name for name in evaluation.downstream if name != "convnet"]
    if not (wanted and evaluation.runs):
        return None
    own = getattr(method(scenario.method.name).settings(scenario.method.settings), "backbone", None)
    name = evaluation.backbone or own
    if not name:
        raise ConfigError(
            f"evaluation.downstream asks for {wanted[0]}, and {scenario.method.name} has no public backbone of its "
            f"own: name one as evaluation.backbone ({', '.join(backbones.available())})"
        )
    backbone_sha256(EvaluationSection(backbone=name), scenario.data.dataset)  # refuses one that saw the run's own data
    found = backbones.load(name)
    tuned = [each for each in wanted if each in _TUNED]
    if tuned and not found.card.classes:
        raise ConfigError(
            f"evaluation.downstream asks for {tuned[0]}, but backbone {name} was never trained, so there is nothing to "
            f"fine-tune: name a network as evaluation.backbone, or ask for a probe"
        )
    shape = benchmarks.load(scenario.data.dataset, "test").shape
    _check_channels("test", shape[0], found.network)
    with torch.no_grad():
        found.network.features(torch.zeros(1, *shape))  # refuses images of another size, if it is for one size only
    return found


def learners(
    made: LabelledSet, settings: EvaluationSection, public: Backbone | None, seed: int, progress: Progress = silent
) -> dict[str, Sequence[Classifier]]:
    """All that `settings.downstream` names, each trained once per run, and the set's own teacher if it has one.

    `public` is what `public_backbone` gives.
    """
    wanted = settings.downstream
    found: dict[str, Sequence[Classifier]] = {}
    if "convnet" in wanted:
        found["convnet"] = convnets(made, settings, seed, progress)
    if "probe" in wanted:
        assert public is not None
        found["probe"] = probes(made, public.network, settings, seed, progress)
    if any(name in wanted for name in _TUNED):
        assert public is not None
        networks = fine_tuned(made, public.network, settings, seed, progress)
        both: dict[str, Sequence[Classifier]] = {"fine-tune": networks, "ensemble": [together(networks)]}
        found |= {name: both[name] for name in _TUNED if name in wanted}
    if made.teacher is not None:
        found["teacher"] = [made.teacher.logits]
    return found


def described(
    scores: Mapping[str, Accuracy], made: LabelledSet, settings: EvaluationSection, public: Backbone | None
) -> dict[str, dict[str, Any]]:
    """The scores of `learners` as `metrics.json` shows them, with what each learnt from and started from."""
    found: dict[str, dict[str, Any]] = {}
    for name, score in scores.items():
        found[name] = {"mean": score.mean, "std": score.std, "runs": list(score.runs)}
        if name != "teacher":
            found[name]["labels"] = labels_of(made, settings)
        if public is not None and name in ("probe", *_TUNED):
            found[name]["backbone"] = public.card.name
    return found


def linear_probe(
    made: LabelledSet,
    backbone: FeatureNetwork,
    test: LabelledImages,
    settings: EvaluationSection,
    seed: int,
    progress: Progress = silent,
) -> Accuracy:
    """Fit linear classifiers as `probes` does, and test each."""
    _check(made, backbone, test)
    return accuracy(probes(made, backbone, settings, seed, progress), test)


def probes(
    made: LabelledSet, backbone: FeatureNetwork, settings: EvaluationSection, seed: int, progress: Progress = silent
) -> list[Classifier]:
    """`settings.runs` linear classifiers on frozen features of `made`, or of lessons from it."""
    fitted, probe = [], settings.probe
    altered = labels_of(made, settings) == "lessons"
    copies = 1 if altered else probe.copies
    for run in range(settings.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(seed, f"linear probe {run}"))
            images, labels = material(made, settings)
        generator = torch.Generator().manual_seed(subseed(seed, f"linear probe {run}"))
        features = []
        for done in range(copies):
            seen = images if altered else augment(images, probe.shift, settings.flips, generator)
            features.append(_features(backbone, seen))
            progress(f"features for linear probe {run + 1} of {settings.runs}", done + 1, copies)
        repeated = labels.repeat(copies, *[1] * (labels.ndim - 1))
        fitted.append(_linear(backbone, *_regress(torch.cat(features), repeated, len(made.classes), probe)))
    return fitted


def fine_tune(
    made: LabelledSet,
    backbone: FeatureNetwork,
    test: LabelledImages,
    settings: EvaluationSection,
    seed: int,
    progress: Progress = silent,
) -> Accuracy:
    """Fine-tune copies of `backbone` as `fine_tuned` does, and test each."""
    _check(made, backbone, test)
    return accuracy(fine_tuned(made, backbone, settings, seed, progress), test)


def ensemble(
    made: LabelledSet,
    backbone: FeatureNetwork,
    test: LabelledImages,
    settings: EvaluationSection,
    seed: int,
    progress: Progress = silent,
) -> Accuracy:
    """The same networks as `fine_tune` gives for this seed, asked together: one figure."""
    _check(made, backbone, test)
    return accuracy([together(fine_tuned(made, backbone, settings, seed, progress))], test)


def fine_tuned(
    made: LabelledSet, backbone: FeatureNetwork, settings: EvaluationSection, seed: int, progress: Progress = silent
) -> list[FeatureNetwork]:
    """`settings.runs` networks, in eval mode, fine-tuned on `made`; `backbone` itself stays as it is.

    For both figures train once: `accuracy` of them, and of ``[together(...)]``.
    """
    networks = []
    for run in range(settings.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(seed, f"fine-tuning {run}"))
            what = f"fine-tuning network {run + 1} of {settings.runs}"
            networks.append(_fine_tune(made, backbone, settings, what, progress))
    return networks


def together(networks: Sequence[Classifier]) -> Classifier:
    """One classifier: the average of the probabilities of several."""
    return lambda images: torch.stack([network(images).softmax(dim=1) for network in networks]).mean(dim=0)


def _fine_tune(
    made: LabelledSet, backbone: FeatureNetwork, evaluation: EvaluationSection, what: str, progress: Progress
) -> FeatureNetwork:
    settings: FineTuneSettings = evaluation.fine_tune
    network = copy.deepcopy(backbone)
    network.head = nn.Linear(backbone.head.in_features, len(made.classes))
    network.eval().requires_grad_(True)  # eval: BatchNorm keeps its public statistics; there is no dropout
    altered = labels_of(made, evaluation) == "lessons"
    images, labels = material(made, evaluation)
    generator = torch.Generator().manual_seed(torch.initial_seed())
    groups = [
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in network.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=settings.learning_rate)
    gsam = GSAM(optimiser, settings.rho, settings.alpha)
    for step in range(settings.steps):
        height = _schedule(step / settings.steps, settings.warmup)
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * height
        gsam.rho = settings.rho * height  # algorithm 1: rho follows the learning rate
        pick = torch.randint(len(images), (min(settings.batch, len(images)),), generator=generator)
        batch, wanted = images[pick], labels[pick]
        if not altered:
            batch = augment(batch, settings.shift, evaluation.flips, generator)

        def loss_of(batch: Tensor = batch, wanted: Tensor = wanted) -> Tensor:
            return functional.cross_entropy(network(batch), wanted)

        if settings.rho > 0.0:
            gsam.step(loss_of)
        else:
            optimiser.zero_grad(set_to_none=True)
            loss_of().backward()
            optimiser.step()
        progress(what, step + 1, settings.steps)
    return network.requires_grad_(False)


def _schedule(progress: float, warmup: float) -> float:
    """The share of the learning rate at a share of the run: a line up, then half a cosine down."""
    if progress < warmup:
        return (progress + 0.02) / (warmup + 0.02)
    return 0.5 * (1.0 + math.cos(math.pi * (progress - warmup) / (1.0 - warmup)))


def _regress(features: Tensor, labels: Tensor, classes: int, settings: ProbeSettings) -> tuple[Tensor, Tensor]:
    """Weight and bias, for features as they are, of the regression on standardised ones."""
    mean, std = features.mean(0), features.std(0).clamp_min(1e-6)
    x = (features - mean) / std
    weight = x.new_zeros(classes, x.shape[1]).requires_grad_()
    bias = x.new_zeros(classes).requires_grad_()
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=settings.iterations, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(functional.linear(x, weight, bias), labels)
        value = value + 0.5 * settings.decay * weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)  # type: ignore[arg-type]
    with torch.no_grad():
        scaled = weight / std
        return scaled, bias - scaled @ mean


def _linear(backbone: FeatureNetwork, weight: Tensor, bias: Tensor) -> Classifier:
    return lambda images: functional.linear(backbone.features(images), weight, bias)


@torch.no_grad()
def _features(network: FeatureNetwork, images: Tensor) -> Tensor:
    return torch.cat([network.features(part) for part in images.split(_AT_ONCE)])


def _check(made: LabelledSet, backbone: FeatureNetwork, test: LabelledImages) -> None:
    for what, images in (("synthetic", made.images), ("test", test.images)):
        if len(images) == 0:
            raise ConfigError(f"there are no {what} images; at least one is needed")
        _check_channels(what, images.shape[1], backbone)
    if len(made.classes) != len(test.classes):
        raise ConfigError(f"the synthetic set has {len(made.classes)} classes, but the test set {len(test.classes)}")


def _check_channels(what: str, channels: int, backbone: FeatureNetwork) -> None:
    if channels != backbone.mean.shape[1]:
        raise ConfigError(
            f"the {what} images have {channels} channels, but the backbone was made for {backbone.mean.shape[1]}; "
            "choose another backbone"
        )
