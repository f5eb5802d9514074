"""Linear probes repeat for a seed, and refuse images that their backbone cannot take."""

from __future__ import annotations

import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.probe import probes
from tests.server.evaluation.worlds import CLASSES, PROBE, TEST, pictures, synthetic


def test_probes_repeat_for_a_seed_and_differ_between_runs(backbone: FeatureNetwork) -> None:
    settings = PROBE.model_copy(update={"runs": 2})
    batch = torch.from_numpy(TEST.images).float() / 255
    state = torch.random.get_rng_state()
    first, again = ([each(batch) for each in probes(synthetic(), backbone, settings, seed=4)] for _ in range(2))
    assert torch.random.get_rng_state().equal(state)
    assert first[0].equal(again[0]) and first[1].equal(again[1]) and not first[0].equal(first[1])


def test_images_of_other_channels_are_refused(backbone: FeatureNetwork) -> None:
    images, labels = pictures(6, 1)
    with pytest.raises(ConfigError, match=r"3 channels.*made for 1"):
        probes(LabelledSet(images.repeat(3, 1), labels, CLASSES), backbone, PROBE, seed=0)
