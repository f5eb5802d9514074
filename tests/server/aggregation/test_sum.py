"""Aggregation by sum: exact, and refused where arrays do not belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpdd.common.errors import IntegrityError
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.wire.release import open_signed
from dpdd.server.aggregation.base import noise_of
from dpdd.server.aggregation.sum import add_up
from tests.client.silos import make_request
from tests.server.releases import as_asked, requested_layout, signed_releases

LAYOUT = requested_layout()


def test_the_sum_is_exact_in_integers_and_noise_adds_in_squares(tmp_path: Path) -> None:
    data, _ = signed_releases(tmp_path, ("north", "south", "west"))
    releases = [as_asked(each, make_request()) for each in data]
    total = add_up(releases, LAYOUT)
    expected = sum(release.arrays["embedding"] for release in releases)
    np.testing.assert_array_equal(total.sums["embedding"] * FIXED_POINT_ONE, expected.astype(np.float64))
    assert total.noise == pytest.approx(noise_of(releases[0]) * 3**0.5)
    np.testing.assert_array_equal(add_up(releases[::-1], LAYOUT).sums["count"], total.sums["count"])


def test_arrays_of_another_shape_are_refused(tmp_path: Path) -> None:
    data, _ = signed_releases(tmp_path, ("north",))
    with pytest.raises(IntegrityError, match="north"):
        add_up([open_signed(data[0])], requested_layout(features=17))
    with pytest.raises(IntegrityError):
        add_up([], LAYOUT)
