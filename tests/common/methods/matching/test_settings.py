"""The settings of matching: what contradicts itself is refused."""

from __future__ import annotations

import pytest

from tests.common.methods.matching.small import settings_of


def test_settings_that_contradict_each_other_are_refused() -> None:
    for changes in ({"signal": "gradients", "dimensions": 3}, {"dimensions": 30}, {"rate": 0.0}, {"rate": 1.1}):
        with pytest.raises(ValueError):
            settings_of(**changes)
