"""A coordinator that really listens on loopback, and silos that really joined it: for tests."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.silo import Silo
from dpdd.client.transport.channel import open_channel
from dpdd.client.transport.join import join
from dpdd.client.transport.node import Node
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.progress import Console
from dpdd.common.wire.answer import SignedReleaseBytes
from dpdd.common.wire.exchange import CHUNK, Manifest
from dpdd.common.wire.privacy import event_to_wire, guarantee_to_wire
from dpdd.common.wire.request import ReleaseRequest
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.request_queue import RequestQueue
from dpdd.server.transport.service import Address, ExchangeServer
from dpdd.v1 import array_pb2, release_pb2
from tests.client.silos import make_request, make_silo


class World:
    """`server` runs between `start` and `stop`, as often as you like, on the same ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.coordinator = Coordinator.initialise(folder / "coordinator")
        self.queue = RequestQueue(folder / "run" / "store", self.coordinator.ledger_positions)
        self.server: ExchangeServer
        self.port = self.join_port = 0
        self.start()

    def start(self) -> None:
        self.server = ExchangeServer(self.coordinator, self.queue, Address("127.0.0.1", self.port, self.join_port))
        self.port, self.join_port = self.server.port, self.server.join_port
        self.server.start()

    def stop(self) -> None:
        self.server.stop(0.2)

    def serving_anybody(self) -> ExchangeServer:
        """A second server, in the loopback demo."""
        return ExchangeServer(self.coordinator, self.queue, Address(), open_enrolment=True)

    def silo(self, name: str, **options: object) -> Silo:
        """A silo that joined."""
        silo = make_silo(self.folder / name, **options)  # type: ignore[arg-type]
        join(silo, f"127.0.0.1:{self.join_port}", self.coordinator.enrol(name))
        return Silo(silo.folder)

    def channel(self, silo: Silo, address: str | None = None) -> grpc.Channel:
        assert silo.settings.coordinator is not None
        return open_channel(silo.folder, silo.settings.coordinator, address or f"127.0.0.1:{self.port}")

    def ask(self, *silos: Silo, request: ReleaseRequest | None = None) -> ReleaseRequest:
        request = request or make_request()
        self.queue.ask(request.id, request.encode(), [silo.settings.name for silo in silos])
        return request

    def releases(self) -> list[str]:
        """The names of the release files in the store."""
        return sorted(path.name for path in (self.folder / "run" / "store").iterdir() if len(path.name) == 64)

    def partials(self) -> list[Path]:
        return sorted(self.queue.partial.iterdir())


@contextmanager
def world(folder: Path) -> Iterator[World]:
    a_world = World(folder)
    try:
        yield a_world
    finally:
        a_world.stop()
        a_world.queue.close()
        a_world.coordinator.close()


@contextmanager
def running(silo: Silo, **options: object) -> Iterator[Node]:
    """The silo's sealed node, in a thread."""
    node = Node(silo.folder, Console(quiet=True), **options)  # type: ignore[arg-type]
    errors: list[BaseException] = []

    def run() -> None:
        try:
            node.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    node.errors = errors  # type: ignore[attr-defined]
    thread.start()
    try:
        yield node
    finally:
        node.stop()
        thread.join(15.0)
        assert not thread.is_alive(), "the node does not stop"


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def manifest_for(data: bytes, request_id: str) -> Manifest:
    return Manifest(hashlib.sha256(data).hexdigest(), len(data), request_id)


def entries(silo: Silo) -> list[str]:
    ledger = silo.ledger()
    try:
        return [entry.kind for entry in ledger.entries()]
    finally:
        ledger.close()


def sign_payload(silo: Silo, payload: bytes) -> bytes:
    """A SignedRelease around any bytes, by this silo's key."""
    key = serialization.load_pem_private_key((silo.folder / "state" / "key.pem").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    return signed(payload, key)


def signed(payload: bytes, key: Ed25519PrivateKey) -> bytes:
    """A SignedRelease around any bytes."""
    field = release_pb2.SignedRelease(release=payload).SerializeToString()
    return release_pb2.SignedRelease(
        release=payload,
        signature=key.sign(b"dpdd release v1\0" + hashlib.sha256(field).digest()),
        public_key=key.public_key().public_bytes_raw(),
    ).SerializeToString()


def big_request(size: int, run: str = "big") -> ReleaseRequest:
    """A request whose answer has `size` bytes, and a few more."""
    classes = tuple(f"class {number}" for number in range(max(3, size // 1_000_000)))
    return make_request(run, classes=classes, settings={"features": max(8, -(-size // (16 * len(classes))))})


def big_release(silo: Silo, request: ReleaseRequest) -> bytes:
    """A release that is all that `request` asks for, by this silo's key; its numbers mean nothing."""
    answer = make_silo(silo.folder.parent / "made-for-size" / silo.settings.name).answer(make_request().encode())
    assert isinstance(answer, SignedReleaseBytes)
    release = release_pb2.Release.FromString(release_pb2.SignedRelease.FromString(answer.data).release)
    release.request_id, plan = bytes.fromhex(request.id), plan_of(request)
    release.event.CopyFrom(event_to_wire(plan.event))
    release.guarantee.CopyFrom(guarantee_to_wire(plan.guarantee))
    release.distance = plan.distance
    del release.arrays[:]
    for name, each in plan.array_types.items():
        release.arrays.add(name=name, dtype=array_pb2.DTYPE_INT64, shape=each.shape, data=os.urandom(each.bytes))
    return sign_payload(silo, release.SerializeToString())


class CuttingProxy:
    """Passes bytes on, counts what silos send, and cuts the first connections after `cuts[0]`, `cuts[1]`, ... of it.

    A cut waits until the server has put away the whole chunks that were passed (`stored` tells how many bytes it
    has): what is still on its way when a connection ends may be lost, and no bound on what is sent again would hold.
    """

    def __init__(self, port: int, cuts: Sequence[int], stored: Callable[[], int]) -> None:
        self._target, self._cuts, self._stored = port, list(cuts), stored
        self.sent = self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection(("127.0.0.1", self._target))
            limit = self._cuts.pop(0) if self._cuts else None
            threading.Thread(target=self._pump, args=(near, far, limit, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, None, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None, outgoing: bool) -> None:
        passed, before = 0, 0 if limit is None else self._stored()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
                passed += len(data)
                self.sent += len(data) if outgoing else 0
                if limit is not None and passed >= limit:
                    break
            if limit is not None and passed >= limit:
                until(lambda: self._stored() >= before + limit // CHUNK * CHUNK, 60.0)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
