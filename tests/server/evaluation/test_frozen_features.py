"""Features of test images are computed once for all who look through the same network, and change no metric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpdd.common.models.backbone import Backbone
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.server.evaluation import frozen_features
from dpdd.server.evaluation.frozen_features import FeatureMemory, OnBackbone, logits
from dpdd.server.evaluation.scoring import evaluate, logits_of
from dpdd.server.evaluation.settings import EvaluationSection
from tests.server.evaluation.worlds import PROBE, TEST, synthetic, tiny_teacher

SETTINGS = EvaluationSection(learners=("probe", "krr", "krr-features"), runs=2, labels="hard", probe=PROBE.probe)


def test_metrics_are_the_same_to_the_last_bit_and_test_images_are_embedded_once(
    public: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [replace(synthetic(), teacher=tiny_teacher(public, tmp_path, turn)) for turn in (0, 1)]
    sets[1] = replace(sets[1], priors=(0.5, 0.3, 0.2))
    seen: list[int] = []
    features = type(public.network).features

    def counted(self: FeatureNetwork, images: torch.Tensor, *more: object) -> torch.Tensor:
        seen.append(len(images))
        return features(self, images, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(type(public.network), "features", counted)
    found, passes = [], []
    for most in (0, 1 << 20):
        monkeypatch.setattr(frozen_features, "MEMORY", FeatureMemory(most))
        seen.clear()
        found.append([evaluate(each, TEST, SETTINGS, public, seed=3) for each in sets])
        passes.append(seen.count(len(TEST)))
    assert found[0] == found[1]
    assert passes == [2 * 5, 1], "two probes, two regressions and a teacher, for each of two sets"


def test_what_determines_features_tells_them_apart(public: Backbone) -> None:
    memory, network = FeatureMemory(), public.network
    images = torch.rand(4, 1, 12, 12)
    computed = []

    def features(images: torch.Tensor) -> torch.Tensor:
        computed.append(len(images))
        return network.features(images)

    first = memory.of("one", features, images)
    assert memory.of("one", features, images.clone()) is first
    changed = images.clone()
    changed[3, 0, 0, 0] += 1e-6
    threads = torch.get_num_threads()
    memory.of("one", features, changed)
    memory.of("other", features, images)
    memory.of("one", features, images[:3])
    memory.of("one", features, images.reshape(4, 1, 144, 1).reshape(2, 2, 12, 12)[:, :1])
    try:
        torch.set_num_threads(threads + 1)
        memory.of("one", features, images)
    finally:
        torch.set_num_threads(threads)
    assert computed == [4, 4, 4, 3, 2, 4]


def test_the_least_used_go_first_and_networks_without_a_hash_are_never_remembered(public: Backbone) -> None:
    images = [torch.full((2, 3), float(number)) for number in range(3)]
    computed: list[float] = []

    def features(images: torch.Tensor) -> torch.Tensor:
        computed.append(float(images[0, 0]))
        return images.clone()

    memory = FeatureMemory(most=2 * images[0].nbytes)
    for number in (0, 1, 0, 2, 0, 1):
        memory.of("one", features, images[number])
    assert computed == [0.0, 1.0, 2.0, 1.0]

    unknown = OnBackbone(public.network, "", lambda _images, features: features[:, :3])
    memory = FeatureMemory()
    assert logits(unknown, torch.rand(2, 1, 12, 12), memory).shape == (2, 3) and not memory._features
    assert logits_of(unknown, TEST).shape == (len(TEST), 3)
