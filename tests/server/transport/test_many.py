"""Two hundred silos at once, and the upload benchmark in small: everything arrives, and memory stays where it was."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.transport.channel import CHANNEL
from dpdd.client.transport.upload import manifest_of, upload
from dpdd.common.wire.request import ReleaseRequest
from dpdd.server.run.store import Store
from dpdd.server.transport.authority import private_pem
from dpdd.server.transport.coordinator import Coordinator
from dpdd.v1 import exchange_pb2, release_pb2
from tests.client.silos import make_silo
from tests.client.transport.bench_upload import Server, measure
from tests.server.transport.worlds import big_release, big_request, signed

SILOS = 200
WAVES = 5
SIZE = 1_000_000


class LightSilo:
    """A name, keys and a certificate: a silo's end of the wire, without its data."""

    def __init__(self, name: str, coordinator: Coordinator) -> None:
        self.name, self.key = name, Ed25519PrivateKey.generate()
        tls = ec.generate_private_key(ec.SECP256R1())
        csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(tls, hashes.SHA256())
        reply = coordinator.join(
            exchange_pb2.JoinRequest(
                token=str(coordinator.enrol(name)),
                certificate_request=csr.public_bytes(serialization.Encoding.DER),
                release_public_key=self.key.public_key().public_bytes_raw(),
            ),
            1,
        )
        pem = x509.load_der_x509_certificate(reply.certificate).public_bytes(serialization.Encoding.PEM)
        self.credentials = grpc.ssl_channel_credentials(coordinator.authority.pem, private_pem(tls), pem)

    def connect(self, port: int) -> grpc.Channel:
        return grpc.secure_channel(f"127.0.0.1:{port}", self.credentials, CHANNEL)


@pytest.mark.timeout(300)
def test_two_hundred_silos_at_once(tmp_path: Path) -> None:
    coordinator = Coordinator.initialise(tmp_path / "coordinator")
    silos = [LightSilo(f"silo-{number:03d}", coordinator) for number in range(SILOS)]
    sample = make_silo(tmp_path / "sample")
    server = Server(tmp_path)
    growth = []
    try:
        channels = {silo.name: silo.connect(server.ports["exchange"]) for silo in silos}
        for wave in range(WAVES):
            request = big_request(SIZE, f"wave-{wave}")
            (tmp_path / "request").write_bytes(request.encode())
            answer = release_pb2.SignedRelease.FromString(big_release(sample, request)).release
            release = release_pb2.Release.FromString(answer)
            barrier = threading.Barrier(SILOS)

            def act(
                silo: LightSilo,
                request: ReleaseRequest = request,
                barrier: threading.Barrier = barrier,
                release: release_pb2.Release = release,
            ) -> None:
                mine = release_pb2.Release()
                mine.CopyFrom(release)
                mine.silo = silo.name
                path = tmp_path / f"{silo.name}.payload"
                path.write_bytes(signed(mine.SerializeToString(), silo.key))
                barrier.wait(60)
                stream = channels[silo.name].unary_stream("/dpdd.v1.Exchange/Requests")(b"", timeout=120)
                while True:
                    got = exchange_pb2.RequestEnvelope.FromString(next(stream)).request
                    if got == request.encode():
                        break
                upload(channels[silo.name], path, manifest_of(path, request.id), lambda _: None)

            server.tell("start")
            with ThreadPoolExecutor(SILOS) as pool:
                acting = [pool.submit(act, silo) for silo in silos]
                server.tell(f"ask {tmp_path / 'request'} {' '.join(channels)}")
                for each in acting:
                    each.result(120)
            memory = server.tell("peak")
            growth.append(memory["peak"] - memory["before"])
            store = Store(tmp_path / "run" / "store")
            assert sorted(store.digests(request.id)) == sorted(channels)
            store.close()
        for channel in channels.values():
            channel.close()
    finally:
        server.close()
        coordinator.close()
    grown = " + ".join(f"{each:.0f}" for each in growth)
    print(f"{SILOS} silos, {SIZE / 1e6:g} MB each: the server grew by {grown} MB")
    assert min(growth[-2:]) < 40.0, growth  # 200 MB arrive in each wave; the server has had its threads and buffers
    assert growth[0] < 200.0, growth  # connections, TLS and threads of 200 silos; not their payloads


@pytest.mark.timeout(300)
def test_memory_does_not_grow_with_the_payload(tmp_path: Path) -> None:
    small, large = (measure(size, 1, tmp_path / str(size))[0] for size in (2, 60))
    for row in (small, large):
        assert row["exchange sender MB"] < 20.0 and row["exchange server MB"] < 40.0, row
    assert large["exchange CPU s"] < 10.0 * large["plain CPU s"], large  # both measured in this run
