"""Every record goes to one silo, by the seed alone, in the proportions that were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdd.common.config import validate
from dpdd.common.data import made_patients
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.errors import ConfigError
from dpdd.scenarios.simulator.partition import FEWEST_RECORDS, partition, values_to_share
from dpdd.server.run.data_section import DataSection
from dpdd.server.run.scenario import PrivacySection

LABELS = np.random.Generator(np.random.PCG64(0)).integers(0, 10, 2000)

WAYS: list[dict[str, Any]] = [
    {"silos": 3},
    {"silos": 1},
    {"silos": 3, "shares": (0.6, 0.3, 0.1)},
    {"silos": 4, "partition": "dirichlet", "alpha": 0.5},
    {"silos": 5, "partition": "pathological", "classes_per_silo": 2},
    {"silos": 7, "partition": "pathological", "classes_per_silo": 3},
]


def section(**values: Any) -> DataSection:
    return DataSection(dataset="fashion-slice", **values)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_record_goes_to_exactly_one_silo_by_the_seed(way: dict[str, Any]) -> None:
    shares = partition(LABELS, section(**way), seed=1)
    assert len(shares) == way["silos"] and all(len(share) for share in shares)
    np.testing.assert_array_equal(np.sort(np.concatenate(shares)), np.arange(len(LABELS)))
    again = partition(LABELS, section(**way), seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))
    if way["silos"] > 1:
        other = partition(LABELS, section(**way), seed=2)
        assert not all(np.array_equal(a, b) for a, b in zip(shares, other, strict=True))


def test_sizes_are_the_shares() -> None:
    assert [len(s) for s in partition(LABELS, section(silos=3), 0)] == [667, 667, 666]
    assert [len(s) for s in partition(LABELS, section(silos=3, shares=(0.6, 0.3, 0.1)), 0)] == [1200, 600, 200]
    assert [len(s) for s in partition(LABELS, section(silos=3, records_per_silo=50), 0)] == [50] * 3


def class_shares(alpha: float) -> np.ndarray:
    shares = partition(LABELS, section(silos=4, partition="dirichlet", alpha=alpha), seed=3)
    assert min(map(len, shares)) >= FEWEST_RECORDS
    counts = np.array([np.bincount(LABELS[share], minlength=10) for share in shares])
    return counts / counts.sum(axis=0)


def test_dirichlet_is_even_for_a_large_alpha_and_skewed_for_a_small_one() -> None:
    even, skewed = class_shares(10_000.0), class_shares(0.1)
    assert np.abs(even - 0.25).max() < 0.03
    assert np.median(skewed.max(axis=0)) > 0.7
    assert len(set(skewed.argmax(axis=0))) > 1  # not one silo that has everything


def test_pathological_silos_have_that_many_classes_shared_evenly() -> None:
    shares = partition(LABELS, section(silos=5, partition="pathological", classes_per_silo=4), seed=5)
    counts = np.array([np.bincount(LABELS[share], minlength=10) for share in shares])
    assert ((counts > 0).sum(axis=1) == 4).all()
    assert ((counts > 0).sum(axis=0) == 2).all()
    for of_class in counts.T:
        assert np.ptp(of_class[of_class > 0]) <= 1


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({"silos": 4, "partition": "pathological", "classes_per_silo": 2}, "at least 3"),
        ({"silos": 4, "partition": "pathological", "classes_per_silo": 11}, "10 classes"),
        ({"silos": 30, "partition": "dirichlet", "alpha": 0.01}, "larger alpha"),
        ({"silos": 3, "shares": (0.9999, 0.00005, 0.00005)}, "no record"),
    ],
)
def test_impossible_splits_are_one_sentence(way: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        partition(LABELS, section(**way), seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"alpha": 0.5}, 'alpha belongs to partition = "dirichlet"'),
        ({"partition": "dirichlet"}, "needs alpha"),
        ({"partition": "dirichlet", "alpha": 0.0}, "alpha"),
        ({"partition": "pathological"}, "needs classes_per_silo"),
        ({"partition": "dirichlet", "alpha": 1.0, "classes_per_silo": 2}, "classes_per_silo belongs"),
        ({"partition": "dirichlet", "alpha": 1.0, "shares": [0.5, 0.25, 0.25]}, "shares belongs"),
        ({"shares": [0.5, 0.5]}, "2 numbers for 3 silos"),
        ({"shares": [0.5, 0.5, 0.5]}, "add up to 1.5"),
        ({"partition": "by-hand"}, "partition"),
    ],
)
def test_keys_that_do_not_fit_together_are_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate({"dataset": "fashion-slice", "silos": 3, **values}, DataSection, "data")


def test_every_silo_may_have_an_epsilon_of_its_own() -> None:
    privacy = PrivacySection(epsilon=1.0, epsilons={"north": 4.0, "east": float("inf")})
    assert [privacy.epsilon_of(name) for name in ("north", "south", "east")] == [4.0, 1.0, float("inf")]
    with pytest.raises(ConfigError, match="names 'east'; the silos are north, south"):
        privacy.check_silos(["south", "north"])
    for wrong in (-1.0, 0.0, 1000.0):
        with pytest.raises(ConfigError, match="epsilon"):
            validate({"epsilons": {"north": wrong}}, PrivacySection, "privacy")


def by_group(silos: int) -> DataSection:
    source = {"path": "x.npz", "groups_key": "patients"}
    values = {"classes": ("a", "b"), "shape": (1, 8, 8), "source": source, "partition": "group", "silos": silos}
    return DataSection.model_validate(values)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(1, 6), st.integers(0, 2**32))
def test_a_group_stays_in_one_silo_and_silos_are_nearly_equal(owners: list[int], silos: int, seed: int) -> None:
    groups = np.array([f"patient {owner}" for owner in owners])
    labels = np.zeros(len(groups), np.int64)
    distinct = len(set(owners))
    if distinct < silos:
        with pytest.raises(ConfigError, match=f"data.silos is {silos}, but there are {distinct} groups"):
            partition(labels, by_group(silos), seed, groups)
        return
    shares = partition(labels, by_group(silos), seed, groups)
    np.testing.assert_array_equal(np.sort(np.concatenate(shares)), np.arange(len(groups)))
    assert sum(len(set(groups[share])) for share in shares) == distinct, "no group is in two silos"
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= np.unique(groups, return_counts=True)[1].max()
    again = partition(labels, by_group(silos), seed, groups)
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))


def test_another_seed_deals_groups_out_anew() -> None:
    groups, labels = np.arange(200) // 4, np.zeros(200, np.int64)
    one, two = (partition(labels, by_group(4), seed, groups) for seed in (1, 2))
    assert not all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    with pytest.raises(ConfigError, match="names groups"):
        partition(labels, by_group(4), 1)


def test_a_column_of_a_table_may_be_what_is_shared_out_in_other_proportions() -> None:
    rows = made_patients.rows("test")
    records = LabelledRecords(rows.rows, rows.labels)
    at = [column.name for column in rows.schema.features].index("diagnosis")
    codes = rows.rows[:, at].astype(np.int64)
    np.testing.assert_array_equal(values_to_share(records, rows.schema, "diagnosis"), codes)
    for column in (None, "readmitted"):
        assert values_to_share(records, rows.schema, column) is rows.labels
    data = DataSection(dataset="made-patients", partition="dirichlet", partition_by="diagnosis", alpha=0.3, silos=3)
    shares = partition(codes, data, seed=1)
    counts = np.array([np.bincount(codes[share], minlength=5) for share in shares])
    assert counts.sum() == len(rows) and (counts / counts.sum(axis=0)).max() > 0.7


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"dataset": "made-patients", "partition_by": "age"}, 'partition_by belongs to partition = "dirichlet"'),
        ({"dataset": "mnist", "partition_by": "age", "partition": "dirichlet", "alpha": 1.0}, "records are images"),
        (
            {"dataset": "made-patients", "partition_by": "ward", "partition": "dirichlet", "alpha": 1.0},
            "a column of the table, which 'ward' is not",
        ),
    ],
)
def test_a_column_to_share_out_is_one_of_a_table(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        validate(values, DataSection, "scenario.toml: data")
