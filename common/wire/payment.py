"""What a release says of the ledger entry that paid for it: enough to rebuild the reservation from the release alone.

>>> from dpdd.common.privacy.events import Gaussian
>>> payment = Payment("autumn", "ab" * 32, 0, 2, Gaussian(4.0), 1e-12, position=7, reservations=3)
>>> payment_from_wire(payment_to_wire(payment)) == payment
True
"""

from __future__ import annotations

from dataclasses import dataclass

from dpdd.common.privacy.events import Event
from dpdd.common.wire.parsing import check, check_name
from dpdd.common.wire.privacy import event_from_wire, event_to_wire
from dpdd.v1 import release_pb2

MOST_STAGES = 10_000


@dataclass(frozen=True)
class Payment:
    """What was set aside for all `stages` of the request `root`, of which this release is one.

    `position` is the number of the entry, and `reservations` how many requests had been paid for when the release was
    made: how old the ledger is, which a silo may keep to itself (0). All else follows from the request and its plan.
    """

    run: str
    root: str
    stage: int
    stages: int
    event: Event
    distance: float
    position: int = 0
    reservations: int = 0


def payment_to_wire(payment: Payment) -> release_pb2.Payment:
    """As protobuf."""
    return release_pb2.Payment(
        run=payment.run,
        root=bytes.fromhex(payment.root),
        stage=payment.stage,
        stages=payment.stages,
        event=event_to_wire(payment.event),
        distance=payment.distance,
        position=payment.position,
        reservations=payment.reservations,
    )


def payment_from_wire(message: release_pb2.Payment) -> Payment:
    """The inverse of `payment_to_wire`; WireError for what cannot be."""
    check(len(message.root) == 32, "a payment names its request by the 32 bytes of a SHA-256")
    check(0 < message.stages <= MOST_STAGES, f"a payment for {message.stages} stages; 1 to {MOST_STAGES} is possible")
    check(message.stage < message.stages, f"a payment for stage {message.stage} of {message.stages}")
    check(0.0 <= message.distance <= 1e300, f"a statistical distance of {message.distance}")
    check(max(message.position, message.reservations) < 2**62, "a ledger with more than 2^62 entries")
    return Payment(
        run=check_name("run", message.run),
        root=message.root.hex(),
        stage=message.stage,
        stages=message.stages,
        event=event_from_wire(message.event),
        distance=message.distance,
        position=message.position,
        reservations=message.reservations,
    )
