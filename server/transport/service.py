"""The gRPC service. Every refusal is one sentence to the silo, one line in the log, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import grpc
import grpc.aio

from dpdd.common.errors import ConfigError, DpddError, WireError
from dpdd.common.methods.verification import check_size
from dpdd.common.wire.answer import Refusal, decode_answer
from dpdd.common.wire.exchange import MOST_MESSAGE, MOST_REQUEST, Manifest, Piece, read_part
from dpdd.common.wire.parsing import check, parse, shown
from dpdd.common.wire.plan import MOST_REPORT, encode_report, report_from_wire
from dpdd.server.transport.authority import MOST_CERTIFICATE_REQUEST, requested
from dpdd.server.transport.calls import Call, Calls, Context, Places
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.event_loop import Threads, on_loop
from dpdd.server.transport.request_queue import RequestQueue
from dpdd.server.transport.silo_memory import SiloMemory
from dpdd.server.transport.streams import Streams
from dpdd.server.transport.uploads import Uploads
from dpdd.v1 import exchange_pb2, refusal_pb2, transfer_pb2

log = logging.getLogger("dpdd.exchange")

MOST_STREAMS = 2500
"""Connected silos. A stream that waits takes memory, and no thread."""

MOST_OTHERS = 2500
"""Other calls at a time. Streams have places of their own, so that they leave these to heartbeats and uploads."""

MOST_JOINING = 32
"""Joining has places and threads of its own: whoever has no certificate cannot take those of the silos."""

CALL_THREADS, JOIN_THREADS = 8, 2

LOOPBACK = "127.0.0.1"
_TICK = 1.0
_SLOW_UPLOAD = 240.0
_CHANNEL = [
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a lottery
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_concurrent_streams", 16),  # on one connection
    # What a silo may send ahead of being read; by default it grows with the line, for every silo.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 19),
]
_JOIN_CHANNEL = [("grpc.max_connection_age_ms", 60_000), ("grpc.max_connection_age_grace_ms", 10_000)]
"""Joining is one call: nobody stays."""


class NotAsked(DpddError):
    """A silo speaks of a request that was not put to it."""


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str = LOOPBACK
    port: int = 0
    join_port: int = 0


class ExchangeServer:
    """Serves the request queue of one run at a time to the silos in a coordinator's registry."""

    def __init__(
        self, coordinator: Coordinator, queue: RequestQueue | None, address: Address, *, open_enrolment: bool = False
    ) -> None:
        if open_enrolment and address.host != LOOPBACK:
            raise ConfigError(f"--loopback-demo lets anybody join: it listens on {LOOPBACK} and nowhere else")
        self._coordinator, self._open = coordinator, open_enrolment
        self._streams = Streams(coordinator, queue)
        self._current = self._streams.current
        self._uploads = Uploads(self._current.queue)
        self._threads, self._join_threads = Threads(CALL_THREADS, "calls"), Threads(JOIN_THREADS, "newcomers")
        self._calls = Calls(coordinator.registry, self._threads)
        self._stream_places = Places(MOST_STREAMS, "connected silos")
        self._other_places = Places(MOST_OTHERS, "calls")
        self._join_places = Places(MOST_JOINING, "silos that join")
        self._memory = SiloMemory(coordinator.ledger_positions)
        self._stopping = threading.Event()
        coordinator.keep_up(datetime.now(UTC))
        mutual, one_sided = _credentials(coordinator, mutual=True), _credentials(coordinator, mutual=False)
        self._server, self.port = on_loop(
            _listening(self._exchange_handlers(), address.host, address.port, mutual, MOST_MESSAGE)
        )
        self._enrolment, self.join_port = on_loop(
            _listening(self._enrolment_handlers(), address.host, address.join_port, one_sided, 1 << 14, *_JOIN_CHANNEL)
        )

    def start(self) -> None:
        """Begin to serve."""
        on_loop(self._server.start())
        on_loop(self._enrolment.start())
        threading.Thread(target=self._housekeeping, daemon=True, name="exchange-housekeeping").start()

    def switch(self, queue: RequestQueue | None) -> None:
        """Serve another run's queue from now on, or none. Silos stay connected."""
        self._current.switch(queue)

    def stop(self, grace: float = 2.0) -> None:
        """Stop: streams end at once, uploads get `grace` seconds."""
        self._stopping.set()
        on_loop(self._stop(grace))
        for threads in (self._threads, self._join_threads, self._streams, self._uploads):
            threads.close()

    async def _stop(self, grace: float) -> None:
        self._streams.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(self._server.stop(grace), self._enrolment.stop(grace)), grace + 5.0)
        await self._calls.ended(5.0)

    def __enter__(self) -> ExchangeServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _housekeeping(self) -> None:
        while not self._stopping.wait(_TICK):
            try:
                self._uploads.end_stalled(_SLOW_UPLOAD)
                self._streams.check_all()
                self._coordinator.registry.write_seen()
                self._coordinator.keep_up(datetime.now(UTC))
            except Exception:  # a busy database, say; a second later it may work
                log.exception("the exchange's housekeeping failed; it goes on")

    # Enrolment: TLS, no client certificate.

    def _enrolment_handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "dpdd.v1.Enrolment", {"Join": grpc.stream_unary_rpc_method_handler(self._join)}
        )

    async def _join(self, _parts: object, context: Context) -> bytes:
        async with self._calls.refusing(context, "a newcomer", "Join", self._join_places):
            data = await self._calls.first(context)
            return await self._join_threads(self._joined, data, context.peer())
        raise AssertionError

    def _joined(self, data: bytes, peer: str) -> bytes:
        message = parse(exchange_pb2.JoinRequest, data, most_bytes=1 << 14)
        if self._open and not message.token:
            message.token = str(self._coordinator.enrol(requested(message.certificate_request)[0]))
        reply = self._coordinator.join(message, self.port)
        log.info("silo %s joined from %s", reply.silo, peer)
        return reply.SerializeToString()

    # Exchange: mutual TLS.

    def _exchange_handlers(self) -> grpc.GenericRpcHandler:
        answers = {
            "Refuse": self._refuse,
            "Report": self._report,
            "Heartbeat": self._heartbeat,
            "Renew": self._renew,
            "RequestKeys": self._request_keys,
            "Position": self._memory.position,
            "Stored": self._memory.stored,
            "Fetch": self._memory.fetch,
        }
        methods = {
            "Requests": grpc.stream_stream_rpc_method_handler(self._requests),
            "Status": grpc.stream_unary_rpc_method_handler(self._status),
            "Upload": grpc.stream_unary_rpc_method_handler(self._upload),
            **{name: grpc.stream_unary_rpc_method_handler(self._answering(name, do)) for name, do in answers.items()},
        }
        return grpc.method_handlers_generic_handler("dpdd.v1.Exchange", methods)

    def _answering(
        self, method: str, answer: Callable[[bytes, Call], bytes]
    ) -> Callable[[object, Context], Awaitable[bytes]]:
        """A handler for a call with one message, which `answer` answers in a thread."""

        async def handler(_parts: object, context: Context) -> bytes:
            async with self._calls.accepted(method, context, self._other_places) as call:
                return await self._threads(answer, await self._calls.first(context), call)
            raise AssertionError

        return handler

    async def _requests(self, _parts: object, context: Context) -> None:
        async with self._calls.accepted("Requests", context, self._stream_places) as call:
            query = parse(exchange_pb2.RequestsQuery, await self._calls.first(context), most_bytes=1 << 12)
            check(len(query.software) <= 100 and query.software.isprintable(), "unprintable software")
            self._coordinator.registry.seen(call.silo, "connected")
            log.info("silo %s is connected (%s, %s)", call.silo, query.software, context.peer())
            await self._streams.serve(call, context)

    async def _status(self, _parts: object, context: Context) -> bytes:
        async with self._calls.accepted("Status", context, self._other_places) as call:
            message = parse(transfer_pb2.Manifest, await self._calls.first(context), most_bytes=1 << 12)
            manifest = await self._threads(self._manifest, message, call)
            return _transfer_status(manifest, *await self._uploads.received(manifest, call))
        raise AssertionError

    async def _upload(self, _parts: object, context: Context) -> bytes:
        async with self._calls.accepted("Upload", context, self._other_places) as call:
            first = read_part(await self._calls.first(context))
            if isinstance(first, Piece):
                raise WireError("an upload starts with its manifest")
            manifest = await self._threads(self._manifest, first, call)
            registry = self._coordinator.registry
            async with self._uploads.open(manifest, call) as upload:
                await context.send_initial_metadata(())  # a silo waits for this before it sends
                if upload is not None:
                    what = f"upload of {manifest.size} bytes for request {manifest.request_id[:12]} by silo {call.silo}"
                    log.info("%s %s", what, f"goes on at byte {upload.received}" if upload.received else "begins")
                    await self._uploads.receive(upload, context, call, registry)
                    log.info("%s is stored", what)
            registry.seen(call.silo, "released")
            return _transfer_status(manifest, manifest.size, True)
        raise AssertionError

    def _refuse(self, data: bytes, call: Call) -> bytes:
        refusal = parse(refusal_pb2.Refusal, data, most_bytes=1 << 14)
        answer = decode_answer(refusal_pb2.Answer(refusal=refusal).SerializeToString())
        assert isinstance(answer, Refusal)
        check(answer.silo == call.silo, f"a refusal by silo {shown(answer.silo)}, sent by silo {call.silo}")
        self._check_asked(answer.request_id, call)
        self._current.queue().refuse(answer)
        what = (call.silo, answer.request_id[:12], answer.reason.words, answer.message)
        log.info("silo %s refused request %s (%s): %s", *what)
        return exchange_pb2.Receipt().SerializeToString()

    def _report(self, data: bytes, call: Call) -> bytes:
        message = parse(exchange_pb2.RehearsalReport, data, most_bytes=MOST_REPORT + (1 << 10))
        queue = self._current.queue()
        rehearsal = queue.rehearsal(message.rehearsal, call.silo)
        if rehearsal is None:
            raise NotAsked(f"no dry round of that name is going on with silo {call.silo}")
        encoded = b""
        if message.HasField("report"):
            report = report_from_wire(message.report)
            check(report.silo == call.silo, f"a report by silo {shown(report.silo)}, sent by silo {call.silo}")
            check(report.request_id == rehearsal.request_id, "a report about another request than the dry round's")
            encoded = encode_report(report)
        queue.report(rehearsal, call.silo, encoded)
        log.info("silo %s reported on request %s", call.silo, rehearsal.request_id[:12])
        return exchange_pb2.Receipt().SerializeToString()

    def _heartbeat(self, data: bytes, call: Call) -> bytes:
        beat = parse(exchange_pb2.Beat, data, most_bytes=1 << 12)
        check(len(beat.doing) <= 200 and (beat.doing.isprintable()), "a heartbeat whose text is long or not printable")
        if beat.in_trouble_with:
            check(len(beat.in_trouble_with) == 32, "a request is named by the 32 bytes of a SHA-256")
            self._check_asked(beat.in_trouble_with.hex(), call)
            self._current.queue().note(beat.in_trouble_with.hex(), call.silo, "in trouble")
            log.warning("silo %s could not answer request %s", call.silo, beat.in_trouble_with.hex()[:12])
        self._coordinator.registry.seen(call.silo, beat.doing)
        return exchange_pb2.Receipt().SerializeToString()

    def _renew(self, data: bytes, call: Call) -> bytes:
        asked = parse(exchange_pb2.RenewRequest, data, most_bytes=MOST_CERTIFICATE_REQUEST + (1 << 7))
        certificate = self._coordinator.renew(call.silo, call.fingerprint, asked.certificate_request)
        log.info("silo %s has a new certificate, good from its first use on", call.silo)
        return exchange_pb2.RenewReply(certificate=certificate).SerializeToString()

    def _request_keys(self, data: bytes, call: Call) -> bytes:
        query = parse(exchange_pb2.RequestKeysQuery, data, most_bytes=1 << 7)
        check(len(query.known) == 32, "a request key is the 32 bytes of an Ed25519 public key")
        return self._coordinator.request_keys_after(query.known)

    def _manifest(self, message: transfer_pb2.Manifest, call: Call) -> Manifest:
        manifest = Manifest.from_wire(message)
        self._check_asked(manifest.request_id, call)
        check_size(manifest.size, self._current.queue().expected(manifest.request_id))
        return manifest

    def _check_asked(self, request_id: str, call: Call) -> None:
        if self._current.queue().row(request_id, call.silo) is None:
            raise NotAsked(f"request {request_id[:12]} was not put to silo {call.silo} in this run")


def _credentials(coordinator: Coordinator, *, mutual: bool) -> grpc.ServerCredentials:
    """What the server shows: the certificate that is in the coordinator's folder when somebody connects."""
    root = coordinator.authority.pem if mutual else None
    shown = coordinator.server_key_and_certificate

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        try:
            now = coordinator.server_key_and_certificate
        except DpddError as error:
            log.warning("the server's certificate cannot be read anew, the one from before is shown: %s", error)
            return None
        if now == shown:
            return None
        shown = now
        return grpc.ssl_server_certificate_configuration([shown], root)

    first = grpc.ssl_server_certificate_configuration([shown], root)
    return grpc.dynamic_ssl_server_credentials(first, renewed, require_client_authentication=mutual)


async def _listening(
    handlers: grpc.GenericRpcHandler,
    host: str,
    port: int,
    credentials: grpc.ServerCredentials,
    most_bytes: int,
    *more: tuple[str, int],
) -> tuple[grpc.aio.Server, int]:
    """A server with its port."""
    options = [
        *_CHANNEL,
        *more,
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", MOST_REQUEST + (1 << 10)),
    ]
    server = grpc.aio.server(handlers=(handlers,), options=options)
    try:
        return server, server.add_secure_port(f"{host}:{port}", credentials)
    except RuntimeError:
        raise ConfigError(f"cannot listen on {host}:{port}: is it in use, or not an address of this machine?") from None


def _transfer_status(manifest: Manifest, received: int, complete: bool) -> bytes:
    return transfer_pb2.TransferStatus(
        payload_sha256=bytes.fromhex(manifest.sha256), received=received, complete=complete
    ).SerializeToString()
