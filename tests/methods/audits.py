"""Requests that audits are tried on, beside the small cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.wire.request import Kind, ReleaseRequest


def plain_gaussian(epsilon: float) -> ReleaseRequest:
    """One Gaussian over the class sums of images: a mixture of everybody. Canaries of one pixel each are orthogonal."""
    given = {"mixtures_per_class": 1, "order": 1.0, "class_size": 1, "encoding": "exact", "clip": 0.01}
    return _of_ten("dp-cda", given, epsilon)


def sps_of_ten(epsilon: float) -> ReleaseRequest:
    """SPS as it is by default, with ten classes of images."""
    return _of_ten("sps", {}, epsilon)


def _of_ten(name: str, given: Mapping[str, Any], epsilon: float) -> ReleaseRequest:
    chosen, run = method(name), RunDescription(tuple("abcdefghij"), (1, 28, 28), public_seed=5)
    return ReleaseRequest(
        run="audit",
        method=name,
        settings=chosen.resolve(chosen.settings(given), run, epsilon, 1e-5).on_wire(),
        epsilon=epsilon,
        delta=1e-5,
        classes=run.classes,
        shape=run.shape,
        public_seed=5,
        kind=Kind.STATISTICS,
    )
