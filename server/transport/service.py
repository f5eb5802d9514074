"""The gRPC service. Every refusal is one sentence to the silo, one line in the log, and leaves nothing behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import grpc

from dpdd.common.errors import ConfigError, DpddError, WireError
from dpdd.common.wire.answer import Refusal, decode_answer
from dpdd.common.wire.exchange import MOST_MESSAGE, MOST_REQUEST, Manifest, Piece, read_part, sign_request
from dpdd.common.wire.parsing import check, parse, shown
from dpdd.common.wire.plan import MOST_REPORT, encode_report, report_from_wire
from dpdd.server.transport.authority import requested
from dpdd.server.transport.calls import Call, Calls, Gone, Superseded, refusing
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.current_run import CurrentRun
from dpdd.server.transport.registry import Revoked
from dpdd.server.transport.request_queue import RequestQueue, RunEnded
from dpdd.server.transport.silo_memory import SiloMemory
from dpdd.server.transport.uploads import Upload, Uploads
from dpdd.v1 import exchange_pb2, refusal_pb2, transfer_pb2

log = logging.getLogger("dpdd.exchange")

WORKERS = 2200
"""Threads are made as they are needed: one per connected silo, and a few for what is going on."""

JOIN_WORKERS = 32
"""Joining has threads of its own: whoever has no certificate cannot take those of the silos."""

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
        self._coordinator, self._current, self._open = coordinator, CurrentRun(queue), open_enrolment
        self._calls, self._uploads = Calls(coordinator.registry), Uploads(self._current.queue)
        self._memory = SiloMemory(coordinator.ledger_positions)
        self._stopping = threading.Event()
        self._streams: dict[str, Call] = {}
        self._pools = [
            ThreadPoolExecutor(WORKERS, thread_name_prefix="exchange"),
            ThreadPoolExecutor(JOIN_WORKERS, thread_name_prefix="newcomers"),
        ]
        key, chain = coordinator.server_key_and_certificate
        mutual = grpc.ssl_server_credentials([(key, chain)], coordinator.authority.pem, require_client_auth=True)
        self._server = self._make(self._pools[0], WORKERS - 100, MOST_MESSAGE, self._exchange_handlers())
        self.port = self._listen(self._server, address.host, address.port, mutual)
        self._enrolment = self._make(self._pools[1], JOIN_WORKERS, 1 << 14, self._enrolment_handlers(), *_JOIN_CHANNEL)
        one_sided = grpc.ssl_server_credentials([(key, chain)])
        self.join_port = self._listen(self._enrolment, address.host, address.join_port, one_sided)

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()
        self._enrolment.start()
        threading.Thread(target=self._housekeeping, daemon=True, name="exchange-housekeeping").start()

    def switch(self, queue: RequestQueue | None) -> None:
        """Serve another run's queue from now on, or none. Silos stay connected."""
        self._current.switch(queue)

    def stop(self, grace: float = 2.0) -> None:
        """Stop: streams end at once, uploads get `grace` seconds."""
        self._stopping.set()
        self._current.wake()
        ended = [self._server.stop(grace), self._enrolment.stop(grace)]
        for event in ended:
            event.wait(grace + 5.0)
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._uploads.close()

    def __enter__(self) -> ExchangeServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make(
        self,
        pool: ThreadPoolExecutor,
        most_calls: int,
        most_bytes: int,
        handlers: grpc.GenericRpcHandler,
        *more: tuple[str, int],
    ) -> grpc.Server:
        options = [
            *_CHANNEL,
            *more,
            ("grpc.max_receive_message_length", most_bytes),
            ("grpc.max_send_message_length", MOST_REQUEST + (1 << 10)),
        ]
        return grpc.server(pool, handlers=(handlers,), options=options, maximum_concurrent_rpcs=most_calls)

    def _listen(self, server: grpc.Server, host: str, port: int, credentials: grpc.ServerCredentials) -> int:
        try:
            return server.add_secure_port(f"{host}:{port}", credentials)
        except RuntimeError:
            raise ConfigError(
                f"cannot listen on {host}:{port}: is it in use, or not an address of this machine?"
            ) from None

    def _housekeeping(self) -> None:
        while not self._stopping.wait(_TICK):
            try:
                self._uploads.end_stalled(_SLOW_UPLOAD)
                self._calls.timeouts.enforce()
            except Exception:  # a busy database, say; a second later it may work
                log.exception("the exchange's housekeeping failed; it goes on")

    # Enrolment: TLS, no client certificate.

    def _enrolment_handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "dpdd.v1.Enrolment", {"Join": grpc.stream_unary_rpc_method_handler(self._join)}
        )

    def _join(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with refusing(context, "a newcomer", "Join"):
            message = parse(exchange_pb2.JoinRequest, self._calls.first(parts, context), most_bytes=1 << 14)
            if self._open and not message.token:
                message.token = str(self._coordinator.enrol(requested(message.certificate_request)[0]))
            reply = self._coordinator.join(message, self.port)
            log.info("silo %s joined from %s", reply.silo, context.peer())
            return reply.SerializeToString()
        raise AssertionError

    # Exchange: mutual TLS.

    def _exchange_handlers(self) -> grpc.GenericRpcHandler:
        one = grpc.stream_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            "dpdd.v1.Exchange",
            {
                "Requests": grpc.stream_stream_rpc_method_handler(self._requests),
                "Status": one(self._answering("Status", self._status)),
                "Upload": one(self._upload),
                "Refuse": one(self._answering("Refuse", self._refuse)),
                "Report": one(self._answering("Report", self._report)),
                "Heartbeat": one(self._answering("Heartbeat", self._heartbeat)),
                "Position": one(self._answering("Position", self._memory.position)),
                "Stored": one(self._answering("Stored", self._memory.stored)),
                "Fetch": one(self._answering("Fetch", self._memory.fetch)),
            },
        )

    def _answering(
        self, method: str, answer: Callable[[bytes, Call], bytes]
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], bytes]:
        """A handler for a call with one message."""

        def handler(parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            with self._calls.accepted(method, context) as call:
                return answer(self._calls.first(parts, context), call)
            raise AssertionError

        return handler

    def _requests(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._calls.accepted("Requests", context) as call:
            query = parse(exchange_pb2.RequestsQuery, self._calls.first(parts, context), most_bytes=1 << 12)
            check(len(query.software) <= 100 and query.software.isprintable(), "unprintable software")
            self._coordinator.registry.seen(call.silo, "connected")
            log.info("silo %s is connected (%s, %s)", call.silo, query.software, context.peer())
            self._streams[call.silo] = call  # before the silo knows: whoever connects after that replaces it
            context.send_initial_metadata(())
            while not self._stopping.is_set():
                queue = self._current.wait(_TICK)
                if queue is None:
                    if not self._stopping.is_set():  # else the registry may be closed by now
                        self._check_stream(call)
                    continue
                with suppress(RunEnded):
                    yield from self._requests_of(queue, call)
                if not self._stopping.is_set() and queue.owes(call.silo):
                    return  # so that it forgets what it has not decided on: nobody waits for that now

    def _check_stream(self, call: Call) -> None:
        """Raise when this stream of a silo should end."""
        call.check()  # revoked or expired since?
        if self._streams[call.silo] is not call:
            raise Superseded(f"silo {call.silo} has connected a second time; one node runs for a silo")

    def _requests_of(self, queue: RequestQueue, call: Call) -> Iterator[bytes]:
        """The requests of one run for a silo, as they come; RunEnded at the end of that run."""
        sent, rehearsed = set[str](), set[bytes]()
        version, key = -1, self._coordinator.request_key
        while not self._stopping.is_set() and self._current.wait(0.0) is queue:
            self._check_stream(call)
            before, version = version, queue.wait_for_requests(version, _TICK)
            for rehearsal in queue.rehearsals_for(call.silo) if version != before else ():
                if rehearsal.nonce not in rehearsed:
                    yield sign_request(rehearsal.request, key, rehearsal.nonce)
                    rehearsed.add(rehearsal.nonce)
                    log.info("a dry round of request %s went to silo %s", rehearsal.request_id[:12], call.silo)
            for row in queue.open_for(call.silo) if version != before else ():
                if row.request_id not in sent or row.state == "asked":  # or asked once more
                    yield sign_request(queue.request(row.request_id), key)
                    sent.add(row.request_id)
                    queue.note(row.request_id, call.silo, "delivered")
                    log.info("request %s went to silo %s", row.request_id[:12], call.silo)

    def _status(self, data: bytes, call: Call) -> bytes:
        manifest = self._manifest(parse(transfer_pb2.Manifest, data, most_bytes=1 << 12), call)
        received, complete = self._uploads.received(manifest, call)
        return _transfer_status(manifest, received, complete)

    def _upload(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with self._calls.accepted("Upload", context) as call:
            first = read_part(self._calls.first(parts, context))
            if isinstance(first, Piece):
                raise WireError("an upload starts with its manifest")
            manifest = self._manifest(first, call)
            with self._uploads.open(manifest, call) as upload:
                context.send_initial_metadata(())  # a silo waits for this before it sends
                if upload is not None:
                    what = f"upload of {manifest.size} bytes for request {manifest.request_id[:12]} by silo {call.silo}"
                    log.info("%s %s", what, f"goes on at byte {upload.received}" if upload.received else "begins")
                    self._receive(parts, upload, call)
                    log.info("%s is stored", what)
            self._coordinator.registry.seen(call.silo, "released")
            return _transfer_status(manifest, manifest.size, True)
        raise AssertionError

    def _receive(self, parts: Iterator[bytes], upload: Upload, call: Call) -> None:
        """Take chunks until the payload is stored; a silo that is revoked meanwhile leaves nothing."""
        registry = self._coordinator.registry
        try:
            for part in parts:
                piece = read_part(part)
                if not isinstance(piece, Piece):
                    raise WireError("an upload has one manifest")
                upload.add(piece)
            call.check()
            upload.finish(registry.release_key(call.silo))
        except (Gone, Revoked, grpc.RpcError):
            if call.silo in registry.revoked():
                upload.discard()
            raise

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

    def _manifest(self, message: transfer_pb2.Manifest, call: Call) -> Manifest:
        manifest = Manifest.from_wire(message)
        self._check_asked(manifest.request_id, call)
        return manifest

    def _check_asked(self, request_id: str, call: Call) -> None:
        if self._current.queue().row(request_id, call.silo) is None:
            raise NotAsked(f"request {request_id[:12]} was not put to silo {call.silo} in this run")


def _transfer_status(manifest: Manifest, received: int, complete: bool) -> bytes:
    return transfer_pb2.TransferStatus(
        payload_sha256=bytes.fromhex(manifest.sha256), received=received, complete=complete
    ).SerializeToString()
