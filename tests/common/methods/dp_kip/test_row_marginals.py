"""Marginals beside gradients: what is released, where the set starts anew, and rows that are decoded with both."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.client.mechanisms.dp_kip import MECHANISM
from dpdd.client.records.records import Records
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip import row_marginals
from dpdd.common.methods.dp_kip.descent import start
from dpdd.common.methods.dp_kip.following import followed
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.dp_kip.table_inputs import cells_of, encoded
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.privatise import in_units
from dpdd.common.progress import silent
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.request import ReleaseRequest
from tests.methods.harness import CLASSES, TABLE, Case

RUN = RunDescription(CLASSES, TABLE.shape, public_seed=5, images_per_class=3, table=TABLE)
SETTINGS = GradientSettings(support_per_class=2, steps=6, rate=1.0, marginals=0.4, start_steps=2)
WIDTH = cells_of(RUN).width
DPKIP = method("dp-kip")


def released(settings: GradientSettings, rows: NDArray, labels: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    asked = ReleaseRequest("run", "dp-kip", settings.on_wire(), math.inf, 1e-5, CLASSES, TABLE.shape, 5, table=TABLE)
    plan = DPKIP.plan(asked, settings)
    answer = MECHANISM.run(Records(rows, labels), asked, settings, plan, SeededEntropy(1), silent)
    return {name: in_units(array) for name, array in answer.arrays.items()}


def statistics(count: int, seed: int = 1) -> list[Statistics]:
    """Of gradients that say nothing, and marginals in which class k mostly has the code k, counted from the end."""
    generator = np.random.Generator(np.random.PCG64(seed))
    sums = np.full((len(CLASSES), WIDTH), 1.0)
    for label in range(len(CLASSES)):
        for cells in cells_of(RUN).cells:
            sums[label, cells.stop - 1 - label % (cells.stop - cells.start)] += 30.0
    size = SETTINGS.support_per_class * len(CLASSES) * WIDTH
    return [
        Statistics({"gradient": generator.standard_normal((1, size)), "marginals": sums}, 0.01, 1) for _ in range(count)
    ]


def test_a_record_adds_its_clipped_gradient_and_its_one_hot_row() -> None:
    rows, labels = Case.of_table("dp-kip").records(40)
    labels = np.asarray(labels, np.int64)
    both, alone = (released(SETTINGS.model_copy(update={"marginals": share}), rows, labels) for share in (0.4, 0.0))
    assert list(alone) == ["gradient"] and list(both) == ["gradient", "marginals"]
    clipped = math.sqrt(1.0 - 0.4**2) * alone["gradient"]
    assert np.linalg.norm(both["gradient"] - clipped) < 0.02 * np.linalg.norm(clipped) + 40**0.5 * 0.01
    hot = encoded(RUN, rows) * 0.4 / math.sqrt(len(TABLE.features))
    for label in range(len(CLASSES)):
        np.testing.assert_allclose(both["marginals"][label], hot[labels == label].sum(0), atol=1e-3)


def test_an_odd_row_adds_nothing_to_either() -> None:
    rows, labels = Case.of_table("dp-kip").records(4)
    rows[1, 0] = 99.0
    found = released(SETTINGS, rows, np.asarray(labels, np.int64))
    kept = [0, 2, 3]
    without = released(SETTINGS, rows[kept], np.asarray(labels, np.int64)[kept])
    for name, array in found.items():
        np.testing.assert_array_equal(array, without[name])


def test_the_set_starts_anew_after_some_steps_from_rows_that_have_the_marginals() -> None:
    supports = followed(statistics(6), SETTINGS, RUN)
    assert np.abs(supports[0] - start(SETTINGS, RUN)).max() <= 1.01 * SETTINGS.learning_rate
    hot = supports[1]
    for label in range(len(CLASSES)):
        for row in hot[2 * label : 2 * label + 2]:
            codes = [row[cells].argmax() for cells in cells_of(RUN).cells]
            likely = [(c.stop - c.start) - 1 - label % (c.stop - c.start) for c in cells_of(RUN).cells]
            assert np.mean([one == other for one, other in zip(codes, likely, strict=True)]) > 0.6
    assert (hot >= 0.0).all() and (hot <= 1.0).all()
    assert 0.0 < np.abs(supports[2] - hot).max() <= 1.01 * SETTINGS.learning_rate, "Adam starts anew, too"


def test_rounds_lead_where_stages_do() -> None:
    given, state = statistics(5), None
    for each in given:
        state, asked = DPKIP.advance(state, each, SETTINGS, RUN)
    np.testing.assert_array_equal(asked["support"], DPKIP.stage_input(given, SETTINGS, RUN)["support"])


def test_other_marginals_are_another_path() -> None:
    before = followed(statistics(4), SETTINGS, RUN)
    other = statistics(4)
    other[1].sums["marginals"][:, :] = other[1].sums["marginals"][::-1].copy()
    assert not np.array_equal(followed(other, SETTINGS, RUN)[-1], before[-1])


def test_decoded_rows_have_codes_of_their_class() -> None:
    assert RUN.images_per_class > SETTINGS.support_per_class  # the smaller number is what there can be
    product = DPKIP.synthesise(statistics(6), SETTINGS, DPKIP.synthesis_settings({}), RUN)
    assert product.labels.tolist() == [label for label in range(len(CLASSES)) for _ in range(2)]
    sizes = np.array(cells_of(RUN).sizes)
    assert (product.rows >= 0).all() and (product.rows < sizes).all()
    likely = sizes - 1 - product.labels[:, None] % sizes
    assert (product.rows == likely).mean() > 0.5


def test_a_class_without_records_has_all_codes_alike() -> None:
    sums = np.stack([np.full(WIDTH, -1.0), *np.ones((len(CLASSES) - 1, WIDTH))])
    found = row_marginals.distributions(sums, RUN)
    for cells in cells_of(RUN).cells:
        np.testing.assert_allclose(found[:, cells], 1.0 / (cells.stop - cells.start))


def test_who_has_no_marginals_is_told() -> None:
    with pytest.raises(ConfigError, match="for tables only"):
        DPKIP.layout(SETTINGS, RunDescription(CLASSES, (1, 6, 6), 3), 0)
    with pytest.raises(ConfigError, match="leave out frozen"):
        DPKIP.layout(SETTINGS.model_copy(update={"frozen": 0.3}), RUN, 0)
    with pytest.raises(ConfigError, match="let start_steps be fewer than steps"):
        DPKIP.settings({"marginals": 0.3, "steps": 20, "start_steps": 20})
