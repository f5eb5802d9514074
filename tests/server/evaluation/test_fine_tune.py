"""Fine-tuning: BatchNorm and the backbone stay, soft labels count, an ensemble averages probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.fine_tune import fine_tuned, together
from dpdd.server.evaluation.scoring import scores
from tests.server.evaluation.worlds import CLASSES, TEST, pictures, probabilities, synthetic, tune

TUNE = tune()


def test_certain_soft_labels_are_hard_labels(backbone: FeatureNetwork) -> None:
    images, labels = pictures(30, 1)
    hard = LabelledSet(images, labels, CLASSES)
    soft = LabelledSet(images, labels, CLASSES, np.eye(3, dtype=np.float32)[labels])
    one, two = (probabilities(fine_tuned(data, backbone, tune(steps=4), seed=1)[0]) for data in (hard, soft))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_fine_tuned_networks_are_as_sure_as_their_labels(backbone: FeatureNetwork) -> None:
    sure = {
        soft: float(probabilities(fine_tuned(synthetic(soft=soft), backbone, TUNE, 0)[0]).amax(1).mean())
        for soft in (0.6, 0.95)
    }
    assert abs(sure[0.6] - 0.6) < 0.1 and sure[0.95] > 0.8


@pytest.mark.parametrize("rho", [0.0, 0.05])
def test_fine_tuning_leaves_batchnorm_statistics_and_the_backbone_alone(rho: float, backbone: FeatureNetwork) -> None:
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    after = fine_tuned(synthetic(), backbone, tune(steps=3, rho=rho), seed=0)[0].state_dict()
    assert all(tensor.equal(before[name]) for name, tensor in backbone.state_dict().items())
    running = [name for name in before if "running" in name or "tracked" in name or name.startswith("whitening")]
    assert len(running) == 12 and all(after[name].equal(before[name]) for name in running)
    learnt = [name for name in before if name not in running and not name.startswith("head")]
    assert learnt and all(not after[name].equal(before[name]) for name in learnt), "all other weights move"


def test_results_repeat_for_a_seed_and_differ_between_runs(backbone: FeatureNetwork) -> None:
    settings = tune(runs=2, steps=3)
    state = torch.random.get_rng_state()
    first = [probabilities(network) for network in fine_tuned(synthetic(), backbone, settings, seed=4)]
    assert torch.random.get_rng_state().equal(state)
    torch.rand(3)
    again = [probabilities(network) for network in fine_tuned(synthetic(), backbone, settings, seed=4)]
    assert first[0].equal(again[0]) and first[1].equal(again[1]) and not first[0].equal(first[1])


def test_an_ensemble_averages_probabilities() -> None:
    # Means say 0, 2; a vote would say 1, 2, the smallest probability 0, 1, a mean of logits 1, 1.
    chances = [
        [[0.979, 0.02, 0.001], [0.9, 0.099, 0.001]],
        [[0.06, 0.5, 0.44], [0.05, 0.3, 0.65]],
        [[0.06, 0.5, 0.44], [0.05, 0.3, 0.65]],
    ]
    logits = [torch.tensor(rows).log() + 3.0 for rows in chances]
    members = [lambda images, answer=answer: answer for answer in logits]
    two = LabelledImages(TEST.images[:2], np.array([0, 2]), CLASSES)
    assert scores(members, two)["accuracy"].runs == (0.5, 0.5, 0.5)
    assert scores([together(members)], two)["accuracy"].runs == (1.0,)
    answers = together(members)(torch.rand(2, 1, 12, 12))
    torch.testing.assert_close(answers.softmax(1).float(), torch.tensor(chances).mean(0))


def test_an_ensemble_keeps_apart_what_is_apart() -> None:
    """Logarithms of neighbouring float32 probabilities must not become a tie, which the first class would win."""
    low = torch.tensor(0.35)
    high = torch.nextafter(low, torch.tensor(1.0))
    rows = torch.stack([low, high, 1.0 - low - high])[None]
    assert rows[0, 0] < rows[0, 1] and len(set(rows.log().tolist()[0])) == 2, "float32 would make it a tie"

    class Sure:
        def softmax(self, dim: int) -> torch.Tensor:
            return rows

    assert together([lambda images: Sure()])(torch.rand(1, 1, 2, 2)).argmax() == 1  # type: ignore[arg-type, return-value]


def test_images_of_other_channels_are_refused(backbone: FeatureNetwork) -> None:
    images, labels = pictures(6, 1)
    with pytest.raises(ConfigError, match=r"3 channels.*made for 1"):
        fine_tuned(LabelledSet(images.repeat(3, 1), labels, CLASSES), backbone, TUNE, seed=0)
