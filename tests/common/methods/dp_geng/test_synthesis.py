"""DP-GENG's synthesis: where images begin, what each part of the loss does, and that parts can be switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpdd.common.methods.dp_geng import extractors
from dpdd.common.methods.dp_geng.expert import fresh, set_vector, vector_of
from dpdd.common.methods.dp_geng.initialisation import assembled, nearest_to_centres
from dpdd.common.methods.dp_geng.settings import COUNT, EXPERT, GRADIENT, SIZE, SynthesisSettings
from dpdd.common.methods.dp_geng.specification import KERNELS, generator_of, schedule, stage_of, step_length
from dpdd.common.methods.dp_geng.synthesis import Guide, expert_loss, expert_weights, silo_size, synthesise
from dpdd.common.methods.matching.pieces import expand
from dpdd.common.models.random_net import RandomNet
from dpdd.common.synthesis.image_pyramid import ImagePyramid
from tests.common.methods.dp_geng.small import NAMES, RUN, SHAPE, settings_of, statistics_of

SETTINGS = settings_of()


def made(settings: Any = SETTINGS, silos: int = 1, **changes: Any) -> np.ndarray:
    synthesis = SynthesisSettings(**{"steps": 4, "learning_rate": 0.05, **changes})
    found = synthesise(statistics_of(settings, silos), settings, synthesis, RUN)
    assert np.bincount(found.labels).tolist() == [2 * synthesis.parts**2] * len(NAMES)
    return found.images


def test_a_pyramid_starts_at_whole_pictures() -> None:
    pictures = torch.rand(2, 1, 9, 12, generator=torch.Generator().manual_seed(1))
    pyramid = ImagePyramid(2, (1, 9, 12), torch.Generator().manual_seed(0))
    pyramid.start_at(pictures)
    assert torch.allclose(pyramid.images(), pictures, atol=1e-5)
    assert all(float(level.detach().abs().max()) > 0.0 for level in pyramid.levels)


def test_images_are_put_together_of_parts_and_taken_apart_again() -> None:
    pictures = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 1, 8, 8)
    whole = assembled(pictures, 2, (8, 8))
    assert whole[:, 0, ::4, ::4].tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert expand(whole, 2)[:, 0, 3, 3].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_clusters_are_found_and_every_point_stands_for_one() -> None:
    generator = torch.Generator().manual_seed(3)
    centres = 100.0 * torch.eye(4)
    points = (centres[:, None] + torch.randn(4, 10, 4, generator=generator)).flatten(0, 1)
    chosen = nearest_to_centres(points, 4, generator)
    assert sorted((chosen // 10).tolist()) == [0, 1, 2, 3]
    assert len(set(nearest_to_centres(points, 13, generator).tolist())) == 13
    assert nearest_to_centres(points[:2], 5, generator).tolist() == [0, 1, 0, 1, 0]
    assert len(nearest_to_centres(torch.zeros(9, 2), 3, generator)) == 3, "points that are all the same"


def test_without_a_loss_images_are_generated_ones() -> None:
    generated = generator_of(SETTINGS).images(statistics_of(SETTINGS)[:1], 12, RUN)
    for start in ("clusters", "random"):
        images = made(match="nothing", expert_weight=0.0, start=start, parts=1)
        for at, label in enumerate(np.repeat(range(3), 2)):
            own = generated.images[generated.labels == label].astype(int)
            assert np.abs(own - images[at]).max(axis=(1, 2, 3)).min() <= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"match": "nothing"},
        {"expert_weight": 0.0},
        {"match": "generated"},
        {"start": "noise"},
        {"images_per_step": 1},
        {"parts": 1},
    ],
)
def test_each_part_changes_the_images(changes: dict[str, Any]) -> None:
    parts = changes.get("parts", 2)
    assert not np.array_equal(made(**changes), made(parts=3 if parts == 1 else 2)[: len(made(**changes))])
    assert not np.array_equal(made(**changes), made(match="nothing", expert_weight=0.0, parts=parts))


def test_parts_that_released_nothing_are_done_without() -> None:
    """Without a matching stage nothing of records is matched; without an expert's, the pretrained one advises."""
    alone = settings_of(shares=(1, 0, 0))
    begun = made(alone, match="nothing", expert_weight=0.0)
    assert np.array_equal(made(alone, expert_weight=0.0), begun)
    assert not np.array_equal(made(alone), begun)
    assert not np.array_equal(made(alone, match="generated", expert_weight=0.0), begun)


def test_a_coupled_schedule_has_a_step_per_draw() -> None:
    coupled = settings_of(schedule="coupled")
    assert np.array_equal(made(coupled, steps=1), made(coupled, steps=9))
    assert not np.array_equal(made(steps=1), made(steps=9))


def test_matching_comes_nearer_to_what_was_released() -> None:
    from dpdd.common.methods.dp_geng.synthesis import GuidedTask

    statistics = statistics_of(SETTINGS)
    generated = generator_of(SETTINGS).images(statistics[:1], 12, RUN)
    synthesis = SynthesisSettings(parts=1, learning_rate=0.05, steps=30, match="generated", expert_weight=0.0)
    task = GuidedTask(statistics[1], None, generated, SETTINGS, synthesis, RUN)
    members, losses = range(3), []
    wanted = task._wanted(members, torch.device("cpu"))
    assert wanted is not None
    for pyramid in task.make(0, torch.device("cpu")):
        labels = torch.arange(3).repeat_interleave(2)
        means = [task._signals.draw(draw).of_class_means(pyramid.images(), labels, members) for draw in range(3)]
        losses.append(sum(float(wanted.loss(draw, mean).detach()) for draw, mean in enumerate(means)))
    assert losses[-1] < 0.7 * losses[0]


def test_the_expert_loss_has_both_terms_of_eq_4() -> None:
    logits, labels = torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 2.0]]), torch.tensor([0, 1])
    references = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
    own, theirs = logits.softmax(1).numpy(), references.softmax(1).numpy()
    cross_entropy = -np.log(own[[0, 1], [0, 1]]).mean()
    divergence = (own * np.log(own / theirs)).sum(axis=1).mean()
    assert cross_entropy > 0.1 and divergence > 0.1
    assert float(expert_loss(logits, labels, references)) == pytest.approx(cross_entropy + divergence, rel=1e-5)


def test_references_are_aggregated_by_class() -> None:
    """Eq. 3: mean logits, of generated images of the image's own class."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, 2, bias=False))
    guide = Guide(network, {0: torch.tensor([[4.0, 0.0]]), 1: torch.tensor([[0.0, 2.0]])}, references=3)
    assert guide._aggregated(0, torch.Generator()).tolist() == [4.0, 0.0]
    assert guide._aggregated(1, torch.Generator()).tolist() == [0.0, 2.0]


def test_the_expert_is_the_mean_of_what_silos_made_of_it() -> None:
    stage = stage_of(SETTINGS, "expert")
    [*_, one] = statistics_of(SETTINGS, silos=1, records=90)
    assert silo_size(statistics_of(SETTINGS, silos=3, records=90), SETTINGS) == pytest.approx(30.0)
    first = one.stage_input[EXPERT].astype(np.float64)
    step = step_length(SETTINGS, 90.0) * np.linalg.norm(schedule(3))
    alone = expert_weights(one, SETTINGS, stage)
    assert np.allclose(alone, first - step * one.sums[GRADIENT][0])
    tripled = {GRADIENT: 3 * one.sums[GRADIENT], COUNT: 3 * one.sums[COUNT]}
    three = replace(one, sums=tripled, silos=3)
    assert three.stage_input[SIZE].tolist() == pytest.approx([90.0])
    assert np.allclose(expert_weights(three, SETTINGS, stage), alone), "three silos that agree"


def test_extractors_are_trained_on_generated_images_unless_they_are_to_be_random() -> None:
    generated = generator_of(SETTINGS).images(statistics_of(SETTINGS)[:1], 12, RUN)
    drawn = [RandomNet.draw(RUN.public_seed, number, SHAPE, 4, 2, 3) for number in range(2)]
    for kind in ("trained", "random"):
        given = extractors.stage_input(settings_of(extractors=kind), generated, RUN)
        same = np.array_equal(given[KERNELS.format(0)], torch.stack([each.kernels[0] for each in drawn]).numpy())
        assert same == (kind == "random") and len(given["images"]) == 12


def test_weights_travel_as_one_vector() -> None:
    network, other = fresh(SETTINGS, SHAPE, 3, seed=1), fresh(SETTINGS, SHAPE, 3, seed=2)
    assert not np.array_equal(vector_of(network), vector_of(other))
    set_vector(other, vector_of(network).astype(np.float64))
    assert np.array_equal(vector_of(network), vector_of(other))
    with pytest.raises(ValueError, match="was given"):
        set_vector(other, np.zeros(7))
