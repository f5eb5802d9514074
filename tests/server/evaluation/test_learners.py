"""The registry of learners: who needs what, and that nobody needs torch to be known."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind
from dpdd.common.models.backbone import Backbone
from dpdd.common.synthesis.public_pool import LabelledPool, PoolFacts
from dpdd.server.evaluation.learner_settings import ConvNetPoolSettings, DenseNetDDSettings, ResNetDDSettings
from dpdd.server.evaluation.learners import DEFAULT_LEARNERS, LEARNERS, learner, learners_for
from tests.server.evaluation.worlds import CONVNET, JUDGE, PROBE, TEST, synthetic, tune


def test_who_there_is_and_what_they_need() -> None:
    names = (
        "convnet-dd",
        "convnet",
        "convnet-pool",
        "probe",
        "fine-tune",
        "ensemble",
        "krr",
        "krr-features",
        "krr-ntk",
        "krr-perceptual",
        "krr-entk",
        "convnet-cda",
        "resnet18-dd",
        "densenet121-dd",
    )
    assert learners_for(DataKind.IMAGE) == names
    assert learners_for(DataKind.TABLE) == DEFAULT_LEARNERS[DataKind.TABLE] and len(LEARNERS) == len(names) + 12
    assert all(each.name == name and learner(name) is each for name, each in LEARNERS.items())
    assert [name for name in names if not LEARNERS[name].needs_backbone] == [*names[:3], *names[8:]]
    assert [name for name, each in LEARNERS.items() if each.tunes_backbone] == ["fine-tune", "ensemble"]
    assert [each.title.format(backbone="tiny") for each in LEARNERS.values()][:14] == [
        "ConvNet, literature's protocol",
        "ConvNet from scratch",
        "ConvNet from scratch",
        "linear probe of tiny",
        "fine-tuned tiny",
        "fine-tuned tiny, together",
        "kernel regression, embedding of tiny",
        "kernel regression, features of tiny",
        "kernel regression, FC-NTK",
        "kernel regression, random ResNet-18",
        "kernel regression, e-NTK of LeNet",
        "ConvNet of DP-CDA's table 1",
        "ResNet-18, literature's protocol",
        "DenseNet-121, literature's protocol",
    ]
    with pytest.raises(ConfigError, match="no learner 'oracle'; known are convnet-dd, convnet, convnet-pool, probe"):
        learner("oracle")


def test_every_learner_trains_classifiers(public: Backbone) -> None:
    quick = {
        "convnet-dd": CONVNET.model_copy(update={"convnet_dd": JUDGE.model_copy(update={"runs": 3, "steps": 2})}),
        "convnet": CONVNET.model_copy(update={"runs": 2, "steps": 2}),
        "convnet-pool": CONVNET.model_copy(update={"convnet_pool": ConvNetPoolSettings(runs=2, width=4, steps=2)}),
        "convnet-cda": CONVNET.model_copy(update={"runs": 2, "steps": 2}),
        "resnet18-dd": CONVNET.model_copy(update={"resnet18_dd": ResNetDDSettings(runs=2, width=4, steps=1)}),
        "densenet121-dd": CONVNET.model_copy(update={"densenet121_dd": DenseNetDDSettings(runs=1, growth=2, steps=1)}),
        "probe": PROBE.model_copy(update={"runs": 2}),
        "fine-tune": tune(runs=2, steps=2),
        "ensemble": tune(runs=2, steps=2),
        **dict.fromkeys(("krr", "krr-features", "krr-ntk", "krr-perceptual", "krr-entk"), CONVNET),
    }
    batch = torch.from_numpy(TEST.images[:5]).float() / 255
    twice, dataset = ("convnet", "convnet-pool", "probe"), synthetic()
    facts = PoolFacts("textures", "CC0-1.0", dataset.classes, (1, 12, 12))
    dataset = replace(dataset, pool=LabelledPool.of(dataset.images, np.eye(3)[dataset.labels], facts))
    for name in learners_for(DataKind.IMAGE):
        each = LEARNERS[name]
        classifiers = each.train(dataset, quick[name], public, seed=0)
        several = {"convnet-dd": 3, "convnet-cda": 2, "resnet18-dd": 2, "fine-tune": 2, **dict.fromkeys(twice, 2)}
        assert len(classifiers) == several.get(name, 1)
        assert all(classifier(batch).shape == (5, 3) for classifier in classifiers)


def test_who_needs_a_backbone_says_so() -> None:
    for name, each in LEARNERS.items():
        if each.needs_backbone:
            with pytest.raises(ConfigError, match=f"learner {name} starts from a public backbone"):
                each.train(synthetic(), tune(runs=2, steps=1), None, seed=0)


def test_names_are_known_without_torch() -> None:
    script = (
        "import sys, dpdd.server.evaluation.settings, dpdd.server.report.scores\n"
        "assert not {'torch', 'flwr', 'sklearn', 'xgboost'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
