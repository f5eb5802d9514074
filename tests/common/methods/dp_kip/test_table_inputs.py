"""Rows of a table for DP-KIP: encoded for the kernel, and decoded again; what odd rows and kernels are answered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.kernels import FullyConnectedNTK, centred, predictions
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.dp_kip.table_inputs import decoded, encoded, largest_cells, support_shape
from dpdd.common.methods.registry import method
from tests.methods.harness import CLASSES, TABLE, Case

RUN = RunDescription(CLASSES, TABLE.shape, public_seed=5, table=TABLE)
CASE = Case.of_table("dp-kip")


def test_the_largest_cells_of_encoded_rows_are_their_codes_whatever_noise_there_is_below_a_half() -> None:
    rows, _ = CASE.records(50)
    hot = encoded(RUN, rows)
    assert hot.shape == (50, *support_shape(RUN)) and (hot.sum(1) == len(TABLE.features)).all()
    noise = np.random.Generator(np.random.PCG64(1)).uniform(-0.49, 0.49, hot.shape)
    assert (largest_cells(RUN, hot + noise) == rows).all()


def test_a_row_with_a_number_that_is_no_code_is_no_numbers() -> None:
    rows, _ = CASE.records(3)
    rows[1, 2] = 99.0
    assert np.isnan(encoded(RUN, rows)).all(axis=1).tolist() == [False, True, False]


def test_images_are_what_they_are() -> None:
    run = RunDescription(CLASSES, (1, 4, 4), public_seed=5)
    images = np.random.Generator(np.random.PCG64(1)).random((3, 1, 4, 4), dtype=np.float32)
    assert encoded(run, images) is images and support_shape(run) == (1, 4, 4)


def test_scattering_is_for_images() -> None:
    chosen = method("dp-kip")
    with pytest.raises(ConfigError, match="scattering is for images: take fc-ntk for a table"):
        chosen.resolve(chosen.settings({"kernel": "scattering"}), RUN, 1.0, 1e-5)


def test_decoded_rows_say_more_of_what_the_relaxed_set_says_than_its_largest_cells_do() -> None:
    generator, settings = np.random.Generator(np.random.PCG64(4)), GradientSettings()
    labels = np.arange(len(CLASSES)).repeat(2)
    support = generator.uniform(0.0, 1.0, (len(labels), *support_shape(RUN)))
    rows = torch.from_numpy(encoded(RUN, CASE.records(500)[0])).double()
    targets = centred(torch.from_numpy(labels), len(CLASSES)).double()

    def said(inputs: np.ndarray) -> torch.Tensor:
        found = predictions(FullyConnectedNTK(), rows, torch.from_numpy(inputs).double(), targets, settings.ridge)
        return (found - found.mean(0)).flatten()  # the constant does not count

    agreement = []
    for codes in (largest_cells(RUN, support).astype(np.float32), decoded(RUN, settings, support, labels)):
        both = torch.stack([said(support), said(encoded(RUN, codes))])
        agreement.append(float(torch.corrcoef(both)[0, 1]))
    assert agreement[1] > agreement[0] + 0.1, agreement
