"""Silos that use the renewal of certificates for something else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dpdd.client.cli import main as client
from dpdd.client.transport.channel import CHANNEL
from dpdd.server.transport.authority import Authority, common_name, private_pem
from dpdd.server.transport.registry import RENEWALS_A_DAY
from dpdd.v1 import exchange_pb2
from tests.server.transport.test_bounds import BEAT
from tests.server.transport.worlds import World, world

RENEW = "/dpdd.v1.Exchange/Renew"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("renewal")) as a_world:
        yield a_world


def asking(name: str, key: ec.EllipticCurvePrivateKey | None = None) -> bytes:
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    der = request.public_bytes(serialization.Encoding.DER)
    return exchange_pb2.RenewRequest(certificate_request=der).SerializeToString()


def refused(channel: grpc.Channel, data: bytes) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(RENEW)(data, timeout=60)
    return caught.value.code(), caught.value.details()


def certificates(here: World) -> int:
    count = here.coordinator.registry._db.execute("SELECT count(*) FROM certificates").fetchone()
    return int(count[0])


def test_a_silo_does_not_renew_in_anothers_name(here: World) -> None:
    mallory, _ = here.silo("mallory"), here.silo("victim")
    before = certificates(here)
    with here.channel(mallory) as channel:
        code, why = refused(channel, asking("victim"))
        assert code is grpc.StatusCode.DATA_LOSS and "for silo 'victim', sent by silo mallory" in why
        for noise in (b"", b"\xff", exchange_pb2.RenewRequest(certificate_request=b"x" * 100).SerializeToString()):
            assert refused(channel, noise)[0] is grpc.StatusCode.INVALID_ARGUMENT
        too_long = exchange_pb2.RenewRequest(certificate_request=bytes(1 << 14)).SerializeToString()
        assert refused(channel, too_long)[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert certificates(here) == before
        reply = exchange_pb2.RenewReply.FromString(channel.unary_unary(RENEW)(asking(""), timeout=60))
    assert common_name(x509.load_der_x509_certificate(reply.certificate).subject) == "mallory"


def test_a_certificate_request_that_its_key_did_not_sign(here: World) -> None:
    """Else somebody else's key could be certified as this silo's."""
    silo = here.silo("liar")
    message = exchange_pb2.RenewRequest.FromString(asking("liar"))
    altered = bytearray(message.certificate_request)
    altered[-1] ^= 1
    with here.channel(silo) as channel:
        code, why = refused(channel, exchange_pb2.RenewRequest(certificate_request=bytes(altered)).SerializeToString())
    assert code in (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.INVALID_ARGUMENT) and "certificate request" in why


def test_a_revoked_silo_does_not_renew_nor_use_what_it_renewed_before(
    here: World, capsys: pytest.CaptureFixture[str]
) -> None:
    silo, key = here.silo("evil"), ec.generate_private_key(ec.SECP256R1())
    with here.channel(silo) as channel:
        reply = exchange_pb2.RenewReply.FromString(channel.unary_unary(RENEW)(asking("evil", key), timeout=60))
        here.coordinator.registry.revoke("evil")
        before = certificates(here)
        assert refused(channel, asking("evil")) == (grpc.StatusCode.PERMISSION_DENIED, "silo evil is revoked")
        assert refused(channel, asking("evil", key)) == (grpc.StatusCode.PERMISSION_DENIED, "silo evil is revoked")
    assert client(["renew", "--silo", str(silo.folder), "--address", f"127.0.0.1:{here.port}"]) == 9
    assert "the old one stays: silo evil is revoked" in capsys.readouterr().err
    pem = x509.load_der_x509_certificate(reply.certificate).public_bytes(serialization.Encoding.PEM)
    shown = grpc.ssl_channel_credentials(here.coordinator.authority.pem, private_pem(key), pem)
    with (
        grpc.secure_channel(f"127.0.0.1:{here.port}", shown, CHANNEL) as channel,
        pytest.raises(grpc.RpcError, match="silo evil is revoked"),
    ):
        channel.unary_unary(BEAT)(b"", timeout=60)
    assert certificates(here) == before


def test_an_expired_certificate_renews_nothing(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    silo = here.silo("late")
    with here.channel(silo) as channel:
        channel.unary_unary(BEAT)(b"", timeout=60)  # connected while it was good
        before = certificates(here)
        late = datetime.now(UTC) + timedelta(days=500)
        monkeypatch.setattr(here.coordinator.registry, "_clock", lambda: late)
        code, why = refused(channel, asking("late"))
        assert code is grpc.StatusCode.UNAUTHENTICATED and "join again with a new token" in why
    assert certificates(here) == before


def test_a_certificate_that_is_not_registered_renews_nothing(here: World) -> None:
    here.silo("known")
    ours, key = here.coordinator.authority, ec.generate_private_key(ec.SECP256R1())
    for issuer in (ours, Authority.create()):  # of our authority, as after a theft of its key, and of another
        pem = issuer.silo_certificate("known", key.public_key()).public_bytes(serialization.Encoding.PEM)
        shown = grpc.ssl_channel_credentials(ours.pem, private_pem(key), pem)
        with grpc.secure_channel(f"127.0.0.1:{here.port}", shown, CHANNEL) as channel:
            code, _ = refused(channel, asking("known"))
        assert code is (grpc.StatusCode.UNAUTHENTICATED if issuer is ours else grpc.StatusCode.UNAVAILABLE)


def test_a_flood_of_renewals_ends_after_a_few(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    silo = here.silo("flood")
    before, now = certificates(here), [datetime.now(UTC)]
    monkeypatch.setattr(here.coordinator.registry, "_clock", lambda: now[0])
    same = ec.generate_private_key(ec.SECP256R1())
    with here.channel(silo) as channel:
        for _ in range(20):  # the same key gets the same certificate
            channel.unary_unary(RENEW)(asking("flood", same), timeout=60)
        for _ in range(RENEWALS_A_DAY - 1):
            channel.unary_unary(RENEW)(asking("flood"), timeout=60)
        code, why = refused(channel, asking("flood"))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "within a day" in why
        assert certificates(here) == before + RENEWALS_A_DAY
        channel.unary_unary(RENEW)(asking("flood", same), timeout=60)  # whom nobody answered is still answered
        assert channel.unary_unary(BEAT)(b"", timeout=60) == b""
        now[0] += timedelta(days=1, hours=1)
        channel.unary_unary(RENEW)(asking("flood"), timeout=60)


def test_using_renewed_certificates_does_not_make_more_of_them_possible(here: World, tmp_path: Path) -> None:
    name = "eager"
    here.silo(name)
    registry, made = here.coordinator.registry, 0
    at = registry._db.execute("SELECT fingerprint FROM certificates WHERE silo = ?", (name,)).fetchone()[0]

    def certify(_: str) -> tuple[str, bytes, str]:
        nonlocal made
        made += 1
        return f"made {made}", b"", "2999"

    for _ in range(50):
        for _ in range(10):
            try:
                registry.renew(at, made.to_bytes(4, "big"), certify)
            except Exception:
                break
        if made:
            at = f"made {made}"
            registry.holder(at)
    assert made <= 4 * RENEWALS_A_DAY
