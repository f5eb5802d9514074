"""Accounting for the same event is done once: calibration asks for the same ones again and again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from dpdd.common.privacy import accounting


@pytest.fixture(scope="session", autouse=True)
def remembered_accounting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "_pld_epsilon", lru_cache(maxsize=None)(accounting._pld_epsilon))
        yield
