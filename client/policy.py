"""What this silo lets others ask, decided from the request and `silo.toml` alone: no record is read for it."""

from __future__ import annotations

from collections.abc import Sequence

from dpdd.client.config import SiloSettings
from dpdd.common.data.table.differences import first_difference
from dpdd.common.methods.base import DataKind
from dpdd.common.methods.registry import QUERIES
from dpdd.common.models.choice import AUTO, comes_with_dpdd
from dpdd.common.wire.answer import Reason
from dpdd.common.wire.request import Kind, ReleaseRequest


class Refused(Exception):
    """The policy says no; becomes a typed refusal."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


OWN_BACKBONE = "the request names a backbone that cannot be used here; name one that ships with dpdd"


def check_backbones(names: Sequence[str], settings: SiloSettings) -> bool:
    """Whether all ship with dpdd; Refused for one that does neither, nor is listed: no file is looked for.

    So a request can neither open a file of its choice nor find out which there are.
    """
    foreign = [name for name in names if name != AUTO and not comes_with_dpdd(name)]
    if not set(foreign) <= set(settings.policy.backbones):
        raise Refused(Reason.MALFORMED, OWN_BACKBONE)
    return not foreign


def check_public_datasets(names: Sequence[str], kind: Kind, settings: SiloSettings) -> None:
    """Refused where this silo would make a set out of data that it does not list: a request cannot have it publish any.

    Whoever asks for statistics makes the set themselves.
    """
    foreign = sorted(set(names) - set(settings.policy.public_datasets))
    if kind is Kind.DISTILLED_SET and foreign:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the set would be made of {', '.join(foreign)}, which is not among this silo's policy.public_datasets",
        )


def check(request: ReleaseRequest, settings: SiloSettings) -> None:
    """Refused unless the policy allows `request`."""
    policy = settings.policy
    method = QUERIES.get(request.method)
    if method is None:
        raise Refused(Reason.UNKNOWN_METHOD, f"this silo's software has no method {request.method}")
    if DataKind.of_shape(request.shape) not in method.data_kinds:
        kinds = " or ".join(sorted(kind.value for kind in method.data_kinds))
        raise Refused(
            Reason.NOT_ALLOWED, f"{request.method} is for records of kind {kinds}, not of shape {request.shape}"
        )
    if request.method not in policy.methods:
        allowed = ", ".join(policy.methods) or "none"
        raise Refused(Reason.NOT_ALLOWED, f"the policy does not allow {request.method} (allowed: {allowed})")
    if request.kind not in method.release_kinds:
        raise Refused(Reason.NOT_ALLOWED, f"{request.method} cannot release a {request.kind.words}")
    if not policy.allows(request.kind):
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the policy does not allow a {request.kind.words} to be asked for (allowed: {', '.join(policy.kinds)})",
        )
    unprotected = request.epsilon == float("inf")
    if unprotected and not (settings.simulation and settings.simulation.allow_no_noise):
        raise Refused(Reason.NOT_ALLOWED, "the request asks for no protection at all")
    if not unprotected and request.epsilon > policy.epsilon_per_request:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the request asks for ε = {request.epsilon:g}, the policy allows {policy.epsilon_per_request:g} a request",
        )
    if request.epsilon < policy.least_epsilon_per_request:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the request asks for ε = {request.epsilon:g}, the policy allows requests from "
            f"{policy.least_epsilon_per_request:g} up: smaller ones cost a ledger entry and say nothing",
        )
    if request.delta > policy.delta_per_request:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the request asks for δ = {request.delta:g}, the policy allows {policy.delta_per_request:g} a request",
        )
    if request.table is not None or settings.data.table is not None:
        differs = first_difference(request.table, settings.data.table, "the request", "this silo")
        if differs is not None:
            raise Refused(Reason.NOT_ALLOWED, differs)
    elif len(request.shape) == 1:
        raise Refused(
            Reason.NOT_ALLOWED, 'this silo declares rows of numbers without a schema (kind = "table", label, columns)'
        )
    if request.classes != settings.data.classes:
        raise Refused(Reason.NOT_ALLOWED, "the request's class list is not this silo's declared one")
    if request.shape != settings.data.shape:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the request is for records of shape {request.shape}, this silo declares {settings.data.shape}",
        )
