"""The settings of SPS: what does not fit together is refused."""

from __future__ import annotations

import pytest

from dpdd.common.methods.sps.settings import MethodSettings
from tests.common.methods.sps import halves as world
from tests.common.methods.sps.halves import settings_for

backbone = world.backbone


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"stages": 1}, "need as many stages"),
        ({"stages": 2, "global_dimensions": 0, "class_layers": 0}, "statistics of layers"),
        ({"stages": 2, "more_sha256": ("00", "11")}, "leave it out"),
    ],
    ids=str,
)
def test_odd_choices_of_backbones_are_refused(backbone: str, changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        settings_for(backbone, more_backbones=("scatter28",), **changes)


def test_a_release_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is released"):
        MethodSettings(features=0, picture=0)
