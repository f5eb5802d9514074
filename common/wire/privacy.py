"""Privacy events and guarantees on the wire."""

from __future__ import annotations

from dpdd.common.errors import WireError
from dpdd.common.privacy import events
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.wire.parsing import check
from dpdd.v1 import privacy_pb2


def event_to_wire(event: events.Event) -> privacy_pb2.Event:
    """An event as protobuf."""
    message = privacy_pb2.Event()
    for part in events.parts(event):
        wire = message.parts.add()
        if isinstance(part, events.Gaussian):
            wire.gaussian.sigma, wire.gaussian.releases = part.sigma, part.releases
        elif isinstance(part, events.PoissonGaussian):
            wire.poisson_gaussian.sigma = part.sigma
            wire.poisson_gaussian.rate, wire.poisson_gaussian.steps = part.rate, part.steps
        else:
            wire.non_private.SetInParent()
    return message


def event_from_wire(message: privacy_pb2.Event) -> events.Event:
    """The inverse of `event_to_wire`; WireError for events that cannot be."""
    check(len(message.parts) > 0, "a release without a privacy event")
    try:
        return events.compose(*map(_part, message.parts))
    except ValueError as error:
        raise WireError(f"not a privacy event: {error}") from None


def _part(part: privacy_pb2.EventPart) -> events.Event:
    match part.WhichOneof("part"):
        case "gaussian":
            return events.Gaussian(part.gaussian.sigma, part.gaussian.releases)
        case "poisson_gaussian":
            poisson = part.poisson_gaussian
            return events.PoissonGaussian(poisson.sigma, poisson.rate, poisson.steps)
        case "non_private":
            return events.NonPrivate()
        case _:
            raise ValueError("a privacy event of no kind")


def guarantee_to_wire(guarantee: Guarantee) -> privacy_pb2.Guarantee:
    """A guarantee as protobuf."""
    return privacy_pb2.Guarantee(
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        accountant=guarantee.accountant,
        neighbours=events.NEIGHBOURS,
    )


def guarantee_from_wire(message: privacy_pb2.Guarantee) -> Guarantee:
    """The inverse of `guarantee_to_wire`."""
    check(message.epsilon >= 0.0, f"a guarantee with epsilon {message.epsilon}")
    check(0.0 < message.delta < 1.0, f"a guarantee with delta {message.delta}")
    check(message.neighbours == events.NEIGHBOURS, f"a guarantee for other neighbours than '{events.NEIGHBOURS}'")
    known = len(message.accountant) <= 100 and message.accountant.isprintable()
    check(known, "a guarantee by an unprintable accountant")
    return Guarantee(message.epsilon, message.delta, message.accountant)
