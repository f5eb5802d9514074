"""What a release states of its payment: read back exactly, checked, and left out by releases of earlier versions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.common.errors import WireError
from dpdd.common.privacy.events import Gaussian, PoissonGaussian, compose
from dpdd.common.wire.payment import Payment, payment_from_wire, payment_to_wire
from dpdd.common.wire.release import decode_release, open_signed, sign
from dpdd.v1 import release_pb2
from tests.common.wire.test_wire import release

PAYMENT = Payment("autumn", "cd" * 32, 1, 3, compose(Gaussian(4.0, 2), PoissonGaussian(2.0, 0.1, 9)), 1e-13, 12, 5)


def test_a_payment_travels_in_a_signed_release() -> None:
    key = Ed25519PrivateKey.generate()
    sent = release(payment=PAYMENT)
    assert open_signed(sign(sent, key)).payment == PAYMENT
    assert payment_from_wire(payment_to_wire(PAYMENT)) == PAYMENT


def test_a_release_of_an_earlier_version_decodes_and_verifies() -> None:
    key = Ed25519PrivateKey.generate()
    plain = release()
    assert b"autumn" not in plain.encode()
    assert open_signed(sign(plain, key), key.public_key().public_bytes_raw()).payment is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("root", bytes(31)),
        ("run", "a b"),
        ("stages", 0),
        ("stages", 10_001),
        ("stage", 3),
        ("distance", -1.0),
        ("distance", float("nan")),
        ("position", 2**62),
        ("reservations", 2**63),
    ],
)
def test_a_payment_that_cannot_be_is_refused(field: str, value: object) -> None:
    message = payment_to_wire(PAYMENT)
    setattr(message, field, value)
    with pytest.raises(WireError):
        payment_from_wire(message)
    whole = release_pb2.Release.FromString(release(payment=replace(PAYMENT, stage=0)).encode())
    whole.payment.CopyFrom(message)
    with pytest.raises(WireError):
        decode_release(whole.SerializeToString())


def test_a_payment_without_an_event_is_refused() -> None:
    message = payment_to_wire(PAYMENT)
    message.ClearField("event")
    with pytest.raises(WireError, match="without a privacy event"):
        payment_from_wire(message)
