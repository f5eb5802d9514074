"""A small world for learners: three textures, a tiny public network, teachers that know what we want them to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.models.backbone import Backbone, Provenance, load, save
from dpdd.common.models.convnet import ConvNet, ConvNetArchitecture
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.teacher import Teacher
from dpdd.server.evaluation.settings import ConvNetDDSettings, EvaluationSection, FineTuneSettings, ProbeSettings

CLASSES = ("top", "bottom", "middle")


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that differ in texture, which pooled features can tell apart."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 3
    images = generator.integers(0, 60, (count, 1, 12, 12), dtype=np.uint8)
    images[labels == 0, :, ::2] += 150
    images[labels == 1, :, :, ::2] += 150
    images[labels == 2] += 75
    return images, labels


TEST = LabelledImages(*pictures(90, 2), CLASSES)


def synthetic(
    labels: Callable[[np.ndarray], np.ndarray] = lambda labels: labels, soft: float | None = None
) -> LabelledSet:
    """60 images with `labels`; with `soft`, that much probability is on a right label, and hard labels are wrong."""
    images, right = pictures(60, 1)
    if soft is None:
        return LabelledSet(images, labels(right), CLASSES)
    rows = np.full((60, 3), (1 - soft) / 2, dtype=np.float32)
    rows[np.arange(60), right] = soft
    return LabelledSet(images, (right + 1) % 3, CLASSES, rows)


def tiny_network() -> FeatureNetwork:
    torch.manual_seed(0)
    shape = ConvNetArchitecture(channels=1, height=12, width=12, classes=7, widths=(8, 12), pool_after=(1,))
    network = ConvNet(shape)
    network.train()
    for seed in range(20):  # so that the running statistics are something to lose
        network(torch.from_numpy(pictures(30, seed)[0]).float() / 255)
    return network.eval().requires_grad_(False)


def tiny_backbone(folder: Path) -> Backbone:
    """The same network as the file `folder/tiny`, which a teacher can name."""
    network = tiny_network()
    with torch.no_grad():
        network.whitening.fit(network.features(torch.from_numpy(pictures(300, 3)[0]).float() / 255))
    save(folder / "tiny", network, Provenance("noise", "none", 0.0, "none", 0))
    return load(folder / "tiny")


def tiny_teacher(public: Backbone, folder: Path, turn: int) -> Teacher:
    """Ridge regression on embeddings of real pictures, in which every class is called the one `turn` after it."""
    images, labels = pictures(300, 4)
    inputs = torch.from_numpy(images).float() / 255
    embedding = ImageEmbedding(features=6, side=0, channels=1)
    with torch.no_grad():
        x = embedding.of(public.network, inputs, public.network.features(inputs)).double()
    y = torch.eye(3, dtype=torch.float64)[torch.from_numpy((labels + turn) % 3)]
    weights = torch.linalg.solve(x.T @ x + 1e-3 * torch.eye(7), x.T @ y).T
    return Teacher(20 * weights.float().numpy(), str(folder / "tiny"), public.card.sha256, embedding)


JUDGE = ConvNetDDSettings(runs=1, width=8, steps=60, learning_rate=0.01)
PROBE = EvaluationSection(probe=ProbeSettings(copies=2))
CONVNET = EvaluationSection(
    learners=("convnet",), runs=1, width=8, steps=60, batch=32, learning_rate=0.01, convnet_dd=JUDGE
)


def tune(runs: int = 1, **changes: float) -> EvaluationSection:
    settings = {"steps": 25, "batch": 32, "learning_rate": 0.01} | changes
    return EvaluationSection(runs=runs, fine_tune=FineTuneSettings.model_validate(settings))


def probabilities(network: FeatureNetwork) -> torch.Tensor:
    with torch.no_grad():
        return network(torch.from_numpy(TEST.images).float() / 255).softmax(1)
