"""SPS, planned: what a request asks for is checked, and one Gaussian calibrated over all its stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.plan import Plan, gaussian_plan
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.methods.sps.specification import check_pinned, specifications, stage_input_shapes
from dpdd.common.wire.request import ReleaseRequest


def plan(request: ReleaseRequest, settings: MethodSettings) -> Plan:
    """One Gaussian release of all statistics, for each stage; ConfigError where a silo could not answer."""
    if request.stage >= settings.stages:
        raise ConfigError(f"the run has {settings.stages} stages, and this is a request for stage {request.stage + 1}")
    check_pinned(settings)
    specs = specifications(settings, RunDescription.of(request), settings.stages)
    expected = stage_input_shapes(specs[request.stage]) if request.stage else {}
    given = {name: array.shape for name, array in request.stage_input.items()}
    if given != expected or not all(np.isfinite(array).all() for array in stage_input(request).values()):
        raise ConfigError(f"the request has the stage input {given}, and should have finite arrays {expected}")
    return gaussian_plan(request, [spec.layout for spec in specs], settings.first_share)


def stage_input(request: ReleaseRequest) -> dict[str, NDArray[np.float32]]:
    """The stage input in single precision, in which it is used; numbers too large for that become infinite."""
    with np.errstate(over="ignore"):
        return {name: np.array(array, dtype=np.float32) for name, array in request.stage_input.items()}
