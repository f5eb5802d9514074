"""Which of the allowed methods could use this silo's records: tried on public facts alone, no record is read.

A silo that no allowed method can serve would join a run, wait, and refuse; `dpdd-client preflight` says so before.
"""

from __future__ import annotations

import math
from typing import Any

from dpdd.client.policy import Refused
from dpdd.client.silo import Silo
from dpdd.common.config import one_line
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, Method, RunDescription
from dpdd.common.methods.registry import AnyQuery, query
from dpdd.common.progress import Progress, silent
from dpdd.common.synthesis.distilled_set import DistilledSetSettings
from dpdd.common.wire.request import Kind, ReleaseRequest

_KINDS = (Kind.STATISTICS, Kind.DISTILLED_SET)


def obstacles(silo: Silo, progress: Progress = silent) -> dict[str, str | None]:
    """For every method that the policy allows, why it could not be asked for; None where it could.

    Each is tried as a coordinator would ask with the method's default settings, at the policy's largest ε and δ.
    """
    methods = silo.settings.policy.methods
    reasons: dict[str, str | None] = {}
    for number, name in enumerate(methods):
        progress("trying methods", number, len(methods))
        try:
            _try(silo, query(name))
            reasons[name] = None
        except (
            Refused,
            ConfigError,
            ValueError,
            RuntimeError,
        ) as error:  # a network answers a wrong size with the last
            reasons[name] = one_line(error).rstrip(".")
    return reasons


def _try(silo: Silo, chosen: AnyQuery) -> None:
    """Plan a request for `chosen`; Refused, ConfigError, ValueError or RuntimeError where that cannot be."""
    data, policy, simulation = silo.settings.data, silo.settings.policy, silo.settings.simulation
    if DataKind.of_shape(data.shape) not in chosen.data_kinds:
        kinds = " or ".join(sorted(kind.value for kind in chosen.data_kinds))
        raise ConfigError(f"it is for records of kind {kinds}, not {data.kind}")
    if data.is_table and data.table is None:
        raise ConfigError('rows of numbers have no schema: declare kind = "table", label and columns')
    kind = next((each for each in _KINDS if each in chosen.release_kinds and policy.allows(each)), None)
    if kind is None:
        raise ConfigError("it releases nothing of a kind that policy.kinds allows")
    epsilon = policy.epsilon_per_request
    if simulation is not None and simulation.allow_no_noise and not _can_be_private(chosen, epsilon):
        epsilon = math.inf
    chosen.check_budget(epsilon)
    run = RunDescription(data.classes, data.shape, public_seed=0, table=data.table)
    settings = chosen.settings({})
    if isinstance(chosen, Method):
        settings = chosen.resolve(settings, run, epsilon, policy.delta_per_request)
    asked: dict[str, Any] = settings.on_wire()
    if kind is Kind.DISTILLED_SET and isinstance(chosen, Method):
        synthesis = chosen.synthesis_settings({}).on_wire()
        asked = DistilledSetSettings(method=asked, synthesis=synthesis, images_per_class=1).model_dump(mode="json")
    silo.plan(
        ReleaseRequest(
            run="preflight",
            method=chosen.name,
            kind=kind,
            settings=asked,
            epsilon=epsilon,
            delta=policy.delta_per_request,
            classes=data.classes,
            shape=data.shape,
            public_seed=run.public_seed,
            table=data.table,
        )
    )
    _try_backbones(chosen.backbones(settings), data.shape)


def _can_be_private(chosen: AnyQuery, epsilon: float) -> bool:
    try:
        chosen.check_budget(epsilon)
    except ConfigError:
        return False
    return True


def _try_backbones(names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """Look at a black image through each public backbone: one for another size says so."""
    import torch

    from dpdd.common.models import backbone

    for name in names:
        with torch.inference_mode():
            backbone.load(name).network.features(torch.zeros(1, *shape))
