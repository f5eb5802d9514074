"""The gRPC service. Every refusal is one sentence to the silo, one line in the log, and leaves nothing behind."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from dpdd.common.config import one_line
from dpdd.common.errors import ConfigError, DpddError, IntegrityError, WireError
from dpdd.common.wire.answer import Refusal, decode_answer
from dpdd.common.wire.exchange import MOST_MESSAGE, MOST_REQUEST, Manifest, Piece, read_part, sign_request
from dpdd.common.wire.parsing import check, parse, shown
from dpdd.server.exchange.board import Board
from dpdd.server.exchange.coordinator import Coordinator, fingerprint
from dpdd.server.exchange.registry import Expired, Revoked, Unknown
from dpdd.server.exchange.uploads import Uploads
from dpdd.v1 import exchange_pb2, refusal_pb2, transfer_pb2

log = logging.getLogger("dpdd.exchange")

WORKERS = 2200
"""Threads are made as they are needed: one per connected silo, and a few for what is going on."""

LOOPBACK = "127.0.0.1"
_TICK = 1.0
_IDLE_UPLOAD = 120.0
_CHANNEL = [
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a lottery
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # What a silo may send ahead of being read; by default it grows with the line, for every silo.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 17),
]
_CODES: list[tuple[type[BaseException], grpc.StatusCode]] = [
    (Unknown, grpc.StatusCode.UNAUTHENTICATED),
    (Expired, grpc.StatusCode.UNAUTHENTICATED),
    (Revoked, grpc.StatusCode.PERMISSION_DENIED),
    (IntegrityError, grpc.StatusCode.DATA_LOSS),
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (DpddError, grpc.StatusCode.FAILED_PRECONDITION),
    (OSError, grpc.StatusCode.RESOURCE_EXHAUSTED),
]


class NotAsked(DpddError):
    """A silo speaks of a request that was not put to it."""


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str = LOOPBACK
    port: int = 0
    join_port: int = 0


class ExchangeServer:
    """Serves one run's board to the silos in a coordinator's registry."""

    def __init__(
        self, coordinator: Coordinator, board: Board, address: Address, *, open_enrolment: bool = False
    ) -> None:
        if open_enrolment and address.host != LOOPBACK:
            raise ConfigError(f"--loopback-demo lets anybody join: it listens on {LOOPBACK} and nowhere else")
        self._coordinator, self._board, self._open = coordinator, board, open_enrolment
        self._uploads = Uploads(board)
        self._stopping = threading.Event()
        self._streams: dict[str, object] = {}
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="exchange")
        key, chain = coordinator.server_key_and_certificate
        mutual = grpc.ssl_server_credentials([(key, chain)], coordinator.authority.pem, require_client_auth=True)
        self._server = self._make(MOST_MESSAGE, self._exchange_handlers())
        self.port = self._listen(self._server, address.host, address.port, mutual)
        self._enrolment = self._make(1 << 14, self._enrolment_handlers())
        one_sided = grpc.ssl_server_credentials([(key, chain)])
        self.join_port = self._listen(self._enrolment, address.host, address.join_port, one_sided)

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()
        self._enrolment.start()
        threading.Thread(target=self._housekeeping, daemon=True, name="exchange-housekeeping").start()

    def stop(self, grace: float = 2.0) -> None:
        """Stop: streams end at once, uploads get `grace` seconds."""
        self._stopping.set()
        self._board.wake()
        ended = [self._server.stop(grace), self._enrolment.stop(grace)]
        for event in ended:
            event.wait(grace + 5.0)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> ExchangeServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make(self, most_bytes: int, handlers: grpc.GenericRpcHandler) -> grpc.Server:
        options = [
            *_CHANNEL,
            ("grpc.max_receive_message_length", most_bytes),
            ("grpc.max_send_message_length", MOST_REQUEST + (1 << 10)),
        ]
        return grpc.server(self._pool, handlers=(handlers,), options=options, maximum_concurrent_rpcs=WORKERS - 100)

    def _listen(self, server: grpc.Server, host: str, port: int, credentials: grpc.ServerCredentials) -> int:
        try:
            return server.add_secure_port(f"{host}:{port}", credentials)
        except RuntimeError:
            raise ConfigError(
                f"cannot listen on {host}:{port}: is it in use, or not an address of this machine?"
            ) from None

    def _housekeeping(self) -> None:
        while not self._stopping.wait(5.0):
            self._uploads.cancel_idle(_IDLE_UPLOAD)

    # Enrolment: TLS, no client certificate.

    def _enrolment_handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "dpdd.v1.Enrolment", {"Join": grpc.unary_unary_rpc_method_handler(self._join)}
        )

    def _join(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        with _refusing(context, "a newcomer", "Join"):
            message = parse(exchange_pb2.JoinRequest, data, most_bytes=1 << 14)
            if self._open and not message.token:
                message.token = str(self._coordinator.enrol(_requested_name(message.certificate_request)))
            reply = self._coordinator.join(message, self.port)
            log.info("silo %s joined from %s", reply.silo, context.peer())
            return reply.SerializeToString()
        raise AssertionError

    # Exchange: mutual TLS.

    def _exchange_handlers(self) -> grpc.GenericRpcHandler:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            "dpdd.v1.Exchange",
            {
                "Requests": stream(self._requests),
                "Status": unary(self._identified("Status", self._status)),
                "Upload": grpc.stream_unary_rpc_method_handler(self._identified("Upload", self._upload)),
                "Refuse": unary(self._identified("Refuse", self._refuse)),
                "Heartbeat": unary(self._identified("Heartbeat", self._heartbeat)),
            },
        )

    def _identified(
        self, method: str, answer: Callable[[Any, str, grpc.ServicerContext], Any]
    ) -> Callable[[Any, grpc.ServicerContext], bytes]:
        """A handler that gets the silo's name from the registry, by the certificate that TLS verified."""

        def handler(request: Any, context: grpc.ServicerContext) -> bytes:
            with _refusing(context, "somebody", method) as who:
                who.append(silo := self._identity(context))
                return bytes(answer(request, silo, context).SerializeToString())
            raise AssertionError

        return handler

    def _identity(self, context: grpc.ServicerContext) -> str:
        shown_by_tls = context.auth_context().get("x509_pem_cert")
        if not shown_by_tls:
            raise Unknown("this call needs a client certificate")
        certificate = x509.load_pem_x509_certificate(shown_by_tls[0])
        silo = self._coordinator.registry.holder(fingerprint(certificate))
        if _common_name(certificate.subject) != silo:
            raise Unknown("this certificate is for another silo than the registry says")
        return silo

    def _requests(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        me = object()
        with _refusing(context, "somebody", "Requests") as who:
            who.append(silo := self._identity(context))
            query = parse(exchange_pb2.RequestsQuery, data, most_bytes=1 << 12)
            check(len(query.software) <= 100 and query.software.isprintable(), "unprintable software")
            self._coordinator.registry.seen(silo, "connected")
            log.info("silo %s is connected (%s, %s)", silo, query.software, context.peer())
            context.send_initial_metadata(())
            self._streams[silo] = me  # a newer stream of the same silo ends this one
            sent: set[str] = set()
            version = -1
            while context.is_active() and not self._stopping.is_set() and self._streams.get(silo) is me:
                self._identity(context)  # revoked or expired since?
                for request_id, request in self._board.open_for(silo).items():
                    if request_id not in sent:
                        yield sign_request(request, self._coordinator.request_key)
                        sent.add(request_id)
                        self._board.note(request_id, silo, "delivered")
                        log.info("request %s went to silo %s", request_id[:12], silo)
                version = self._board.wait_for_asks(version, _TICK)

    def _status(self, data: bytes, silo: str, _context: grpc.ServicerContext) -> transfer_pb2.TransferStatus:
        manifest = self._manifest(parse(transfer_pb2.Manifest, data, most_bytes=1 << 12), silo)
        received, complete = self._uploads.received(manifest, silo)
        return _transfer_status(manifest, received, complete)

    def _upload(self, parts: Iterator[bytes], silo: str, context: grpc.ServicerContext) -> transfer_pb2.TransferStatus:
        first = read_part(next(parts, b""))
        if isinstance(first, Piece):
            raise WireError("an upload starts with its manifest")
        manifest = self._manifest(first, silo)
        with self._uploads.open(manifest, silo, context.cancel) as upload:
            if upload is not None:
                what = f"upload of {manifest.size} bytes for request {manifest.request_id[:12]} by silo {silo}"
                log.info("%s %s", what, f"goes on at byte {upload.received}" if upload.received else "begins")
                for part in parts:
                    piece = read_part(part)
                    if not isinstance(piece, Piece):
                        raise WireError("an upload has one manifest")
                    upload.add(piece)
                if not context.is_active():
                    raise WireError(f"the connection broke at byte {upload.received}")
                upload.finish(self._coordinator.registry.release_key(silo))
                log.info("%s is stored", what)
        self._coordinator.registry.seen(silo, "released")
        return _transfer_status(manifest, manifest.size, True)

    def _refuse(self, data: bytes, silo: str, _context: grpc.ServicerContext) -> exchange_pb2.Receipt:
        refusal = parse(refusal_pb2.Refusal, data, most_bytes=1 << 14)
        answer = decode_answer(refusal_pb2.Answer(refusal=refusal).SerializeToString())
        assert isinstance(answer, Refusal)
        check(answer.silo == silo, f"a refusal by silo {shown(answer.silo)}, sent by silo {silo}")
        self._check_asked(answer.request_id, silo)
        if self._board.digest(answer.request_id, silo) is None:
            self._board.refuse(answer)
        log.info(
            "silo %s refused request %s (%s): %s", silo, answer.request_id[:12], answer.reason.words, answer.message
        )
        return exchange_pb2.Receipt()

    def _heartbeat(self, data: bytes, silo: str, _context: grpc.ServicerContext) -> exchange_pb2.Receipt:
        beat = parse(exchange_pb2.Beat, data, most_bytes=1 << 12)
        check(len(beat.doing) <= 200 and (beat.doing.isprintable()), "a heartbeat whose text is long or not printable")
        if beat.in_trouble_with:
            check(len(beat.in_trouble_with) == 32, "a request is named by the 32 bytes of a SHA-256")
            self._check_asked(beat.in_trouble_with.hex(), silo)
            self._board.note(beat.in_trouble_with.hex(), silo, "in trouble")
            log.warning("silo %s could not answer request %s", silo, beat.in_trouble_with.hex()[:12])
        self._coordinator.registry.seen(silo, beat.doing)
        return exchange_pb2.Receipt()

    def _manifest(self, message: transfer_pb2.Manifest, silo: str) -> Manifest:
        manifest = Manifest.from_wire(message)
        self._check_asked(manifest.request_id, silo)
        return manifest

    def _check_asked(self, request_id: str, silo: str) -> None:
        if self._board.row(request_id, silo) is None:
            raise NotAsked(f"request {request_id[:12]} was not put to silo {silo} in this run")


@contextmanager
def _refusing(context: grpc.ServicerContext, who: str, method: str) -> Iterator[list[str]]:
    """Turn what goes wrong into a status with one sentence, and a line in the log."""
    known: list[str] = []

    def refuse(code: grpc.StatusCode, why: str) -> NoReturn:
        name = f"silo {known[0]}" if known else who
        log.warning("refused %s by %s from %s: %s", method, name, context.peer(), why)
        context.abort(code, why)
        raise AssertionError

    try:
        yield known
    except (DpddError, OSError) as error:
        refuse(next(code for kind, code in _CODES if isinstance(error, kind)), one_line(error)[:1000])
    except sqlite3.Error as error:  # the database is busy for too long, or closed because the server stops
        refuse(grpc.StatusCode.UNAVAILABLE, f"the coordinator cannot use its database now ({one_line(error)})")
    except grpc.RpcError:
        log.info("%s by %s from %s broke off", method, f"silo {known[0]}" if known else who, context.peer())
        raise


def _transfer_status(manifest: Manifest, received: int, complete: bool) -> transfer_pb2.TransferStatus:
    return transfer_pb2.TransferStatus(
        payload_sha256=bytes.fromhex(manifest.sha256), received=received, complete=complete
    )


def _requested_name(certificate_request: bytes) -> str:
    """The name in a certificate request; used in the loopback demo only."""
    try:
        return _common_name(x509.load_der_x509_csr(certificate_request).subject)
    except (ValueError, TypeError):
        raise WireError("not a certificate request (PKCS#10)") from None


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""
