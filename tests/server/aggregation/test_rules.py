"""The rules by name, on releases with different ε."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.methods.registry import method
from dpdd.common.privacy.events import Gaussian
from dpdd.common.wire.release import open_signed
from dpdd.server.aggregation.base import noise_of
from dpdd.server.aggregation.rules import RULES, aggregate
from dpdd.server.aggregation.sum import add_up
from tests.client.silos import make_request, make_silo
from tests.server.releases import as_asked, requested_layout

LAYOUT = requested_layout()


def test_releases_with_different_epsilon_add_up_and_are_weighed(tmp_path: Path) -> None:
    silos = [make_silo(tmp_path / name, records=3000, epsilon=2.0) for name in ("north", "south", "west")]
    requests = [make_request(epsilon=epsilon) for epsilon in (0.2, 2.0, 2.0)]
    releases = [
        as_asked(silo.answer(request.encode()).data, request)  # type: ignore[union-attr]
        for silo, request in zip(silos, requests, strict=True)
    ]
    noise = [noise_of(release) for release in releases]
    assert noise[0] > 5 * noise[1]
    merf = method("dp-merf")
    weight = merf.count_weight(merf.settings({"features": 16}), 0)
    for rule in RULES:
        total = aggregate(releases, LAYOUT, rule, weight)
        assert total.noise == pytest.approx(float(np.linalg.norm(noise)))
    added, weighed = (aggregate(releases, LAYOUT, rule, weight).sums for rule in ("sum", "precision"))
    np.testing.assert_array_equal(added["embedding"], add_up(releases, LAYOUT).sums["embedding"])
    assert not np.allclose(added["embedding"], weighed["embedding"])
    with pytest.raises(ConfigError, match="no class counts"):
        aggregate(releases, LAYOUT, "precision", None)
    np.testing.assert_array_equal(aggregate(releases, LAYOUT, "sum", None).sums["count"], added["count"])
    with pytest.raises(ConfigError, match="no aggregation rule 'median'; known are sum, precision"):
        aggregate(releases, LAYOUT, "median", weight)


def test_silos_are_weighed_by_the_noise_that_was_asked_for(tmp_path: Path) -> None:
    request = make_request()
    release = open_signed(make_silo(tmp_path / "north").answer(request.encode()).data)  # type: ignore[union-attr]
    for rule in RULES:
        with pytest.raises(IntegrityError, match="silo north was not compared with its request"):
            aggregate([release] * 3, LAYOUT, rule, 0.1)
    assert noise_of(as_asked(release, request)) == pytest.approx(3.7306, abs=1e-4)
    assert noise_of(release.as_planned(Gaussian(2.0))) == 2.0  # whatever the silo states
