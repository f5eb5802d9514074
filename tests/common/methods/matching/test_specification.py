"""What silos measure for matching: layouts, counts, the choice of d, and auxiliary images; from public facts alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.dp_merf.settings import MethodSettings as DPMERFSettings
from dpdd.common.methods.matching import subspace
from dpdd.common.methods.matching.settings import MethodSettings
from dpdd.common.methods.matching.specification import auxiliary, draw_layout, signals
from dpdd.common.methods.matching.stages import count_weight, generator_of, layout, matching_stage, resolve, stages
from dpdd.common.methods.registry import method
from dpdd.common.models.random_net import RandomNet
from tests.common.methods.matching.small import RUN, SEED, settings_of


def test_the_noise_of_counts_is_that_of_a_draw() -> None:
    """Summed over draws and divided by √draws, a count weighs rate · √draws times what it does in one draw."""
    for draws in (1, 4, 100):
        settings = settings_of(draws=draws, rate=0.5, count_share=0.3)
        assert count_weight(settings, 0) == pytest.approx(0.3 * draws * 0.5 / math.sqrt(draws))


def test_rows_of_a_class_are_its_rows_in_every_draw() -> None:
    settings = settings_of(dimensions=5)
    signal, count = layout(settings, RUN, 0).segments
    assert (signal.rows, signal.width, count.rows, count.width) == (30, 5, 5, 1)
    table = np.arange(30).reshape(6, 5)
    for label in range(5):
        assert list(signal.rows_of[label]) == table[:, label].tolist()
    each = draw_layout(settings, RUN)
    assert each.width == 6 and each.copies().tolist() == [[1, 1]] * 5


def test_the_stages_are_those_of_the_auxiliary_images() -> None:
    one, two = settings_of(), settings_of(auxiliary="generated")
    assert (method("dosser").stages(one), method("dosser").stages(two)) == (1, 2)
    assert layout(two, RUN, 0) == method("dp-merf").layout(generator_of(two).settings, RUN, 0)
    assert layout(two, RUN, 1) == layout(one, RUN, 0) == method("dosser").layout(two, RUN, 1)
    assert count_weight(two, 0) == generator_of(two).settings.count_weight
    assert count_weight(two, 1) == count_weight(one, 0)
    assert method("dosser").count_weight(two, 1) == count_weight(two, 1)


def test_a_generator_of_several_rounds_comes_first_and_later_requests_alone_name_it() -> None:
    votes = {"rounds": 3, "population": 4, "features": 0}
    asked = settings_of(auxiliary="generated", generator="private-evolution", generator_settings=votes, dimensions=5)
    found = resolved(asked, 1.0)
    evolution = generator_of(found)
    assert (stages(found), matching_stage(found)) == (4, 3)
    for stage in range(3):
        assert layout(found, RUN, stage) == evolution.method.layout(evolution.settings, RUN, stage)
        assert count_weight(found, stage) == evolution.count_weight
    assert layout(found, RUN, 3) == layout(settings_of(dimensions=5), RUN, 0)
    assert found.generator_settings == evolution.settings.on_wire() != votes, "a coordinator fills in what is left out"
    assert MethodSettings.model_validate(found.on_wire()) == found
    older = settings_of(auxiliary="generated", dimensions=5).on_wire()
    assert not {name for name in older if name.startswith("generator")}, "requests keep their bytes"
    with pytest.raises(ValueError, match="settings of a generator are for"):
        settings_of(generator_settings=votes)


def resolved(settings: MethodSettings, epsilon: float) -> MethodSettings:
    resolved: MethodSettings = method("dosser").resolve(settings, RUN, epsilon, 1e-5)
    return resolved


def test_resolve_picks_the_least_predicted_error_and_less_under_more_noise() -> None:
    auto = settings_of(dimensions="auto", records_per_class=300, width=16)
    found = [resolved(auto, epsilon) for epsilon in (math.inf, 20.0, 1.0, 0.01)]
    chosen = [values.dimensions for values in found]
    assert chosen == sorted(chosen, reverse=True) and chosen[0] == 15 and chosen[-1] == 1 < chosen[1]  # type: ignore[type-var]
    for values in found:
        assert values.model_copy(update={"dimensions": "auto", "subspace_arithmetic": None}) == auto
        MethodSettings.model_validate(values.model_dump())
    spectrum = signals(found[0], auxiliary(auto, {}, RUN), RUN).spectrum(0)
    assert chosen[0] == subspace.best(spectrum, 0.0, 300.0, 15)


def test_resolve_leaves_explicit_numbers_alone() -> None:
    before = settings_of(dimensions=9, subspace_arithmetic="float64")
    for values in (settings_of(dimensions=0), before, settings_of(dimensions=0, signal="gradients")):
        assert resolved(values, 1.0) is values
    assert resolved(settings_of(dimensions=9), 1.0) == settings_of(dimensions=9, subspace_arithmetic="integer")
    assert resolved(settings_of(dimensions="auto", signal="gradients"), 1.0).dimensions == 0
    assert method("dp-merf").resolve(DPMERFSettings(), RUN, 1.0, 1e-5) == DPMERFSettings()


def test_requests_without_an_arithmetic_keep_their_bytes_and_their_subspace() -> None:
    """Releases that silos made for them are read with the subspace that they were made in."""
    older = settings_of(dimensions=9)
    for values in (older, settings_of(dimensions=9, subspace_arithmetic="float64")):
        assert "subspace_arithmetic" not in values.on_wire()
        assert MethodSettings.model_validate(values.on_wire()) == older
    newer = resolved(older, 1.0)
    assert MethodSettings.model_validate(newer.on_wire()) == newer
    leaves = auxiliary(older, {}, RUN)
    bases = [signals(values, leaves, RUN).draw(0).space for values in (older, newer)]
    exact = subspace.fit(
        RandomNet.draw(SEED, 0, RUN.image_shape, older.width, older.depth, len(RUN.classes))
        .to(torch.zeros((), dtype=torch.float64))
        .features(torch.from_numpy(leaves).double()),
        9,
        SEED,
    )
    assert bases[0] is not None and bases[1] is not None
    torch.testing.assert_close(bases[0].basis, exact.basis, rtol=0.0, atol=1e-9)
    assert (bases[1].basis - exact.basis).abs().max() > 1e-6


@pytest.mark.parametrize("shape", [(64,), (1, 3, 64), (1, 64, 3)])
def test_shapes_that_no_network_can_look_at_are_refused_in_a_sentence(shape: tuple[int, ...]) -> None:
    for dimensions in ("auto", 0):
        with pytest.raises(ConfigError, match="networks of depth 2 are not for records of shape"):
            resolve(settings_of(dimensions=dimensions), replace(RUN, shape=shape), 1.0, 1e-5)
    with pytest.raises(ValueError, match="a request names the number"):
        layout(settings_of(dimensions="auto"), RUN, 0)


def test_leaves_are_the_same_for_everybody_and_of_any_number_of_channels() -> None:
    settings = settings_of()
    for shape in ((1, 8, 8), (2, 8, 8), (3, 8, 8), (5, 8, 12)):
        run = replace(RUN, shape=shape)
        leaves = auxiliary(settings, {}, run)
        assert leaves.shape == (30, *shape) and 0.0 <= leaves.min() < leaves.max() <= 1.0
        np.testing.assert_array_equal(leaves, auxiliary(settings, {}, run))
        assert not np.array_equal(leaves, auxiliary(settings, {}, replace(run, public_seed=SEED + 1)))
