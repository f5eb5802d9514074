"""The silo's node: it takes signed requests from the one coordinator that `silo.toml` pins, runs the installed
`ClientApp` on them and nothing else, and sends what that answers: a release from the outbox, or a refusal.

It keeps no state of its own. The coordinator's stream says which requests are open, every time it connects; the silo's
ledger and outbox know what was answered. So either side may die at any moment, and the next connection goes on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import grpc

from dpdd.client.config import CoordinatorSettings
from dpdd.client.silo import Silo
from dpdd.client.transport.channel import Files, explain, open_channel
from dpdd.client.transport.installed_app import ATTEMPTS, InstalledApp
from dpdd.client.transport.request_keys import RequestKeys
from dpdd.client.transport.retries import LONGEST_WAIT, NOT_ACCEPTED, PERMANENT, TRANSIENT, again, jittered
from dpdd.client.transport.stored_releases import hear_position, unshown_claim
from dpdd.client.transport.upkeep import CertificateUpkeep
from dpdd.client.transport.upload import manifest_of, upload
from dpdd.client.worker.worker import Worker
from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from dpdd.client.app import make_app
from dpdd.common.cli import software
from dpdd.common.errors import ConfigError, DpddError, IntegrityError, WireError
from dpdd.common.progress import Console
from dpdd.common.wire.answer import Reason, Refusal, decode_answer, encode_answer
from dpdd.common.wire.exchange import BEAT_SECONDS, Envelope, open_request
from dpdd.common.wire.plan import decode_report, report_to_wire
from dpdd.common.wire.request import decode_request
from dpdd.v1 import exchange_pb2, refusal_pb2

log = logging.getLogger("dpdd.node")

POLL_SECONDS = 2.0
MOST_QUEUED = 8
_CALL_TIMEOUT = 30.0
_NOT_SIGNED = "the request is not signed by the coordinator that this silo joined"


def pinned_coordinator(silo: Silo) -> CoordinatorSettings:
    """The coordinator in `silo.toml`; ConfigError before `join`."""
    if silo.settings.coordinator is None:
        raise ConfigError(f"silo.toml pins no coordinator; `dpdd-client join --silo {silo.folder} ADDRESS TOKEN` does")
    return silo.settings.coordinator


class Doing(StrEnum):
    """All that a heartbeat says. Phases and sizes would tell of the records; they stay in the console and the log."""

    IDLE = "idle"
    WORKING = "working"
    IN_TROUBLE = "in trouble"


class _Heard(NamedTuple):
    """What came, verified when it came: the request key may be another one when its turn comes."""

    digest: bytes
    envelope: Envelope


class Node:
    """Runs until `stop`."""

    def __init__(
        self, folder: Path, console: Console, *, address: str | None = None, worker: Worker | None = None
    ) -> None:
        self._silo = Silo(folder)
        self._pinned = pinned_coordinator(self._silo)
        self._address = address or self._pinned.address
        self._console = console
        self._stop = threading.Event()
        self._ask_app = InstalledApp(make_app(lambda _silo: self._progress, worker), folder, self._stop)
        self._keys = RequestKeys(Files(folder), self._pinned)
        self._upkeep = CertificateUpkeep(Files(folder), self._silo.settings.name, self._say)
        self._inbox: queue.Queue[_Heard] = queue.Queue(MOST_QUEUED)
        self._queued: set[bytes] = set()
        self._undecided: dict[str, bytes] = {}
        self._doing = Doing.IDLE
        self._channel: grpc.Channel | None = None
        self._connected = False
        self._last_line = ""

    def stop(self) -> None:
        """End soon; nothing is lost."""
        self._stop.set()
        channel = self._channel
        if channel is not None:
            channel.close()

    def run(self) -> None:
        """Connect, answer, and connect again, until somebody says stop.

        IntegrityError when the coordinator says that this silo's certificate is revoked, expired or unknown: trying
        again would not help.
        """
        log.info("%s answers for silo %s as process %d", software(), self._silo.settings.name, os.getpid())
        threading.Thread(target=self._work, daemon=True, name="node-work").start()
        threading.Thread(target=self._heartbeat, daemon=True, name="node-heartbeat").start()
        wait = 0.5
        while not self._stop.is_set():
            self._connected = superseded = False
            try:
                self._upkeep.connecting()
                with open_channel(self._silo.folder, self._pinned, self._address) as channel:
                    self._channel = channel
                    self._listen(channel)
                problem = "the coordinator ended the connection"
            except grpc.RpcError as error:
                problem, superseded = explain(error), error.code() is grpc.StatusCode.ABORTED
                if error.code() in NOT_ACCEPTED and not self._stop.is_set() and not self._upkeep.outdated():
                    raise IntegrityError(f"the coordinator does not accept this silo: {problem}") from None
            except (ValueError, OSError) as error:  # the channel was closed meanwhile, or the disk is full
                problem = str(error)
            finally:
                self._channel = None
                self._undecided.clear()
            if self._connected and not superseded:
                wait = 0.5
            pause = jittered(wait)
            if not self._stop.is_set() and not self._upkeep.outdated():
                self._say(f"not connected to {self._address}: {problem}; {again(pause)}")
            self._stop.wait(pause)
            wait = min(2 * wait, LONGEST_WAIT)

    def _listen(self, channel: grpc.Channel) -> None:
        """Take requests as they come; returns or raises when the connection ends."""
        self._refresh_keys(channel)
        query = exchange_pb2.RequestsQuery(software=software()).SerializeToString()
        stream = channel.unary_stream("/dpdd.v1.Exchange/Requests")(query, wait_for_ready=False)
        stream.initial_metadata()  # comes when the coordinator has accepted this silo
        if stream.is_active():
            self._connected = True
            self._say(f"connected to {self._address}")
            self._hear_position(channel)
        for envelope in stream:
            digest = hashlib.sha256(envelope).digest()
            if digest in self._queued:
                continue
            try:
                heard = _Heard(digest, self._open(envelope, channel))
            except WireError as error:
                log.error("the coordinator sent something that is not a request: %s", error)
                continue
            self._queued.add(digest)  # before it can be taken out again
            while not self._stop.is_set():
                with suppress(queue.Full):
                    self._inbox.put(heard, timeout=POLL_SECONDS)
                    break

    def _open(self, envelope: bytes, channel: grpc.Channel) -> Envelope:
        """What came, and whether the key that is trusted signed it; if it is not, another may be trusted by now."""
        opened = open_request(envelope, self._keys.key)
        if not opened.signed and self._refresh_keys(channel):
            return open_request(envelope, self._keys.key)
        return opened

    def _refresh_keys(self, channel: grpc.Channel) -> bool:
        """Learn of request keys that followed; whether there were any."""
        try:
            return self._keys.refresh(channel)
        except DpddError as error:
            self._say(f"the coordinator's request key stays as it was: {error}")
            return False

    def _hear_position(self, channel: grpc.Channel) -> None:
        """Learn how far the coordinator knows this silo's ledger. Where that is further than it goes, requests fail."""
        if why := hear_position(channel, self._silo):
            self._say(f"this silo answers nothing new: {why}")

    def _is_claimed_behind(self) -> bool:
        """Whether the coordinator says, without a proof, that the ledger is an old copy: then it gets nothing."""
        why = unshown_claim(self._silo)
        if why:
            self._say(f"not answered: {why}")
        return bool(why)

    def _work(self) -> None:
        """Answer one request after the other; look again at those whose operator had not decided."""
        while not self._stop.is_set():
            try:
                digest, opened = self._inbox.get(timeout=POLL_SECONDS)
            except queue.Empty:
                for request_id, request in list(self._undecided.items()):
                    self._handle(request_id, request, again=True)
                continue
            self._queued.discard(digest)
            request_id = hashlib.sha256(opened.request).hexdigest()
            if opened.rehearsal:
                self._rehearse(request_id, opened)
            else:
                self._handle(request_id, opened.request, signed=opened.signed)

    def _rehearse(self, request_id: str, envelope: Envelope) -> None:
        """Report what this silo would do with a request; whatever goes wrong costs a report, and no more."""
        if not envelope.signed:
            log.error("ignored a dry round of request %s: %s", request_id[:12], _NOT_SIGNED)
            return
        self._doing = Doing.WORKING
        try:
            reply = None if self._is_claimed_behind() else self._ask_app(envelope.request, flower.PLAN)
            wire = exchange_pb2.RehearsalReport(rehearsal=envelope.rehearsal)
            would = "could not be planned"
            if reply is not None:
                report = decode_report(flower.unpack(reply.content, "dpdd.v1.PlanReport"))
                wire.report.CopyFrom(report_to_wire(report))
                would = f"would be refused ({report.refusal.reason.words})" if report.refusal else "would be answered"
                would += ", after you approved it" if report.asks_operator else ""
            self._say(f"dry round: request {request_id[:12]} {would}; nothing was spent")
            self._send_with_retries(lambda channel: _unary(channel, "Report", wire.SerializeToString()))
        except Exception:  # whatever it was, the next request is still to be answered
            log.exception("the dry round of request %s was not answered", request_id[:12])
        finally:
            self._doing = Doing.IDLE

    def _handle(self, request_id: str, request: bytes, *, signed: bool = True, again: bool = False) -> None:
        self._doing = Doing.WORKING
        try:
            if signed:
                self._answer(request_id, request, again=again)
            else:
                self._refuse_unsigned(request_id)
        except Exception:  # whatever it was, the next request is still to be answered
            log.exception("request %s was not answered; the traceback is in the log", request_id[:12])
            self._report_failure(request_id)
        finally:
            self._console.finish()
            self._doing = Doing.IDLE

    def _answer(self, request_id: str, request: bytes, *, again: bool) -> None:
        if not again:
            self._note(request_id, request)
        reply = None if self._is_claimed_behind() else self._ask_app(request, flower.ACTION)
        if reply is None:
            self._undecided.pop(request_id, None)
            self._say(f"request {request_id[:12]} could not be answered; the lines above say why")
            self._report_failure(request_id)
            return
        answer = decode_answer(flower.unpack(reply.content, "dpdd.v1.Answer"))
        if isinstance(answer, Refusal):
            undecided = answer.reason is Reason.AWAITING_APPROVAL
            if undecided and self._channel is not None:
                self._undecided[request_id] = request
            else:
                self._undecided.pop(request_id, None)
            if undecided and again:
                return
            self._say(f"request {request_id[:12]}: refused ({answer.reason.words}): {answer.message}")
            if undecided:
                self._say(f"  `dpdd-client approve {request_id[:12]} --silo {self._silo.folder}` allows it")
            self._send_refusal(answer)
            return
        self._undecided.pop(request_id, None)
        self._send_release(request_id, request)

    def _note(self, request_id: str, request: bytes) -> None:
        """What was asked, in the log; the silo itself says what is wrong with a request that cannot be read."""
        with suppress(WireError):
            asked = decode_request(request)
            log.info(
                "request %s: run %s asks for %s by %s, ε = %g, δ = %g, stage %d (%d bytes)",
                *(request_id[:12], asked.run, asked.kind.words, asked.method),
                *(asked.epsilon, asked.delta, asked.stage, len(request)),
            )

    def _report_failure(self, request_id: str) -> None:
        """Tell the coordinator not to wait for this one. It does not learn why: that may depend on the records."""
        beat = exchange_pb2.Beat(doing=Doing.IN_TROUBLE, in_trouble_with=bytes.fromhex(request_id)).SerializeToString()
        self._send_with_retries(lambda channel: _unary(channel, "Heartbeat", beat))

    def _refuse_unsigned(self, request_id: str) -> None:
        log.error("refused request %s: %s", request_id[:12], _NOT_SIGNED)
        self._say(f"request {request_id[:12]}: refused (wrong coordinator): {_NOT_SIGNED}")
        self._send_refusal(Refusal(request_id, self._silo.settings.name, Reason.WRONG_COORDINATOR, _NOT_SIGNED))

    def _send_refusal(self, refusal: Refusal) -> None:
        wire = refusal_pb2.Answer.FromString(encode_answer(refusal)).refusal.SerializeToString()
        self._send_with_retries(lambda channel: _unary(channel, "Refuse", wire))

    def _send_release(self, request_id: str, request: bytes) -> None:
        """From the file in the outbox, which holds these bytes for ever."""
        path = self._silo.outbox.path(request_id)
        ledger = self._silo.ledger()
        try:
            manifest = manifest_of(path, request_id, ledger.committed(request_id))
        finally:
            ledger.close()
        words = f"{manifest.size / 1e6:.2f} MB for run {decode_request(request).run}"

        def tell(received: int) -> None:
            self._say(f"sending {words}" + (f", from byte {received}" if received else ""))

        def sent(count: int) -> None:
            if count < manifest.size:  # most releases are one chunk, and the line above is enough
                self._console("sending", count, manifest.size)

        if self._send_with_retries(lambda channel: upload(channel, path, manifest, tell, sent)):
            self._say(f"request {request_id[:12]}: the coordinator has the release ({words})")
            with suppress(grpc.RpcError, ValueError):  # the connection broke: it is asked when there is a new one
                if (channel := self._channel) is not None:
                    self._hear_position(channel)
        else:
            self._report_failure(request_id)

    def _send_with_retries(self, send: Callable[[grpc.Channel], object]) -> bool:
        """Retry with exponential back-off; False when the coordinator refuses for good, or when the node stops."""
        wait, refused = 0.2, 0
        while not self._stop.is_set():
            channel = self._channel
            pause = jittered(wait)
            if channel is not None:
                try:
                    send(channel)
                    return True
                except grpc.RpcError as error:
                    why = explain(error)
                    refused = 0 if error.code() in TRANSIENT else refused + 1
                    if refused >= ATTEMPTS or error.code() in PERMANENT:
                        self._say(f"the coordinator refused: {why}")
                        return False
                except (DpddError, ValueError) as error:  # ValueError: the channel was closed meanwhile
                    why = str(error)
                self._say(f"not sent yet: {why}; {again(pause)}")
            self._stop.wait(pause)
            wait = min(2 * wait, LONGEST_WAIT if channel is not None else 1.0)
        return False

    def _heartbeat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            channel = self._channel
            if channel is not None:
                try:
                    _unary(channel, "Heartbeat", self._beat())
                except (grpc.RpcError, ValueError):
                    log.debug("a heartbeat did not get through")
                    continue
                self._upkeep.beat(channel)
                if self._upkeep.outdated() and self._doing is Doing.IDLE and self._inbox.empty():
                    self._say("connecting anew, with the renewed certificate")
                    channel.close()

    def _beat(self) -> bytes:
        return exchange_pb2.Beat(doing=self._doing).SerializeToString()

    def _progress(self, what: str, done: int, of: int) -> None:
        """For the operator alone: how long a phase takes and how many steps it has depends on the records."""
        self._console(what, done, of)

    def _say(self, text: str) -> None:
        if text != self._last_line:
            self._console.say(f"{time.strftime('%H:%M:%S')} {text}")
            log.info("%s", text)
        self._last_line = text


def _unary(channel: grpc.Channel, method: str, data: bytes) -> bytes:
    reply: bytes = channel.unary_unary(f"/dpdd.v1.Exchange/{method}")(data, timeout=_CALL_TIMEOUT)
    return reply
