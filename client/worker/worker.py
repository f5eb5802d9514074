"""The node's side: has a job done by a worker under limits, and believes nothing of what comes back unread.

>>> with Worker() as worker:
...     worker.started
False
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dpdd.client.answering import Assignment, stays
from dpdd.client.config import SiloSettings
from dpdd.client.estimates import MEASURED, Measured
from dpdd.client.open_records import same_records
from dpdd.client.worker import jobs
from dpdd.client.worker.endings import STOPPED, UNREADABLE, WorkerEnded, error_of, no_message, sentence
from dpdd.client.worker.frames import BrokenFrames, Kind, Reader
from dpdd.client.worker.limits import Limits, default_memory
from dpdd.client.worker.plan_json import plan_from_json, plan_to_json
from dpdd.client.worker.supervisor import MOST_MESSAGE, End, again, request_of
from dpdd.common.config import one_line
from dpdd.common.errors import ConfigError, IntegrityError, WireError
from dpdd.common.methods.plan import ENVELOPE, Plan
from dpdd.common.progress import Progress, silent
from dpdd.common.wire.release import Release, decode_release
from dpdd.common.wire.request import ReleaseRequest

PROGRAM = (sys.executable, "-m", "dpdd.client.worker")
MOST_PLANS = 16
STARTING = 300.0
"""Seconds that a supervisor may take to import everything, on a busy machine."""
ENDING = 2.0
_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV")
_PREFIXES = ("CUDA", "GOMP_", "KMP_", "LC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TORCH")
_BLOCK = 1 << 20
_GONE = {"end": "gone", "code": 0}


class PlanTooLong(Exception):
    """Planning took more than a silo gives it."""


@dataclass(frozen=True)
class Planned:
    """A plan, and an upper bound on the memory that its answer takes."""

    plan: Plan
    memory: int


@dataclass(frozen=True)
class Usage:
    """What a job took, by the system's count; `peak` is what was in memory, libraries included."""

    cpu_seconds: float
    peak: int


@dataclass(frozen=True)
class _Staying:
    """A worker that stays for the next stage: whose records it has open, and the channel to it."""

    key: str
    channel: socket.socket

    @property
    def run(self) -> str:
        """The id of the first stage."""
        return str(json.loads(self.key)[0])


class Worker:
    """Starts a supervisor when it is first needed, and again when one ended. One job at a time."""

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = tuple(program)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._staying: _Staying | None = None
        self._closing = False
        self._plans: OrderedDict[str, Planned | str | None] = OrderedDict()
        self.last: Usage | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def started(self) -> bool:
        """Whether a supervisor runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the supervisor, unless it runs; it is ready a few seconds later, and nobody has to wait for that."""
        with self._lock:
            self._start()

    def close(self) -> None:
        """End the supervisor, and with it whatever it runs, for good."""
        self._closing = True
        if (control := self._control) is not None:
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # whoever waits for a job hears of it at once
        with self._lock:
            self._close()

    def _start(self) -> socket.socket:
        if self._control is not None and self.started:
            return self._control
        self._close()
        if self._closing:
            raise WorkerEnded(sentence(STOPPED, None, 0), STOPPED)
        if sys.platform != "linux":
            raise ConfigError("a worker needs Linux; `isolation = false` in [worker] does without it")
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = self._launch(far)
        self._control = near
        return near

    def _launch(self, control: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._program, str(control.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[control.fileno()],
            env={name: text for name, text in os.environ.items() if _is_needed(name)},
            start_new_session=True,  # Ctrl-C is for the node
        )

    def _close(self) -> None:
        if self._staying is not None:
            self._staying.channel.close()
            self._staying = None
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(ENDING)
            except subprocess.TimeoutExpired:  # it is still starting
                self._process.kill()
                self._process.wait()
            self._process = None

    def make(self, assignment: Assignment, limits: Limits, progress: Progress) -> Release:
        """The release for an assignment, not yet compared with it."""
        header, request = jobs.assignment_to_json(assignment), assignment.request.encode()
        try:
            most = assignment.plan.bytes + ENVELOPE
            if not stays(assignment.request):
                return decode_release(self.run("answer", header, request, limits, progress, most))
            key = same_records(assignment, header)
            return decode_release(self._run_staying(key, header, request, limits, progress, most))
        except WireError:
            raise IntegrityError("the worker sent something that is no release; nothing was released") from None

    def plan(self, request: ReleaseRequest, limits: Limits) -> Planned:
        """What an answer costs; ConfigError where there can be none, PlanTooLong where limits do not suffice.

        Whichever it was, the last few are kept, so that asking again costs nothing.
        """
        identifier = request.id
        if identifier not in self._plans:
            self._plans[identifier] = self._plan(request, limits)
            while len(self._plans) > MOST_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(identifier)
        planned = self._plans[identifier]
        if planned is None:
            raise PlanTooLong
        if isinstance(planned, str):
            raise ConfigError(planned)
        return planned

    def _plan(self, request: ReleaseRequest, limits: Limits) -> Planned | str | None:
        try:
            said = self._plan_of_staying(request, limits)
            return _planned(self.run("plan", {}, request.encode(), limits) if said is None else said)
        except WorkerEnded as error:
            if error.end in (End.MEMORY, End.CPU, End.TIME):
                return None
            raise

    def measure(self, request: ReleaseRequest, plan: Plan, limits: Limits) -> Measured | None:
        """What the mechanism takes over made-up records; None where limits do not suffice."""
        header = {"plan": plan_to_json(plan), "records": MEASURED}
        try:
            few, many = json.loads(self.run("measure", header, request.encode(), limits))
            return Measured.of((float(few), float(many)))
        except WorkerEnded:
            return None
        except UNREADABLE:
            raise no_message() from None

    def run(
        self,
        job: str,
        header: Mapping[str, Any],
        request: bytes,
        limits: Limits,
        progress: Progress = silent,
        most: int = ENVELOPE,
    ) -> bytes:
        """What comes of a job, in at most so many bytes; WorkerEnded at a limit, or the error that the worker met."""
        with self._lock:
            self._dismiss()
            kind, payload, ended = self._converse(jobs.message_of(job, header, request), limits, progress, most)
        return self._outcome(kind, payload, ended, limits)

    def _run_staying(
        self, key: str, header: Mapping[str, Any], request: bytes, limits: Limits, progress: Progress, most: int
    ) -> bytes:
        """The answer to one of many stages, by a worker that stays; `key` says whose records it opens."""
        message = jobs.message_of("answer", {**header, "stays": True}, request)
        with self._lock:
            if self._staying is not None and (self._staying.key != key or self._has_spoken(self._staying)):
                self._dismiss()
            known = self._staying is not None
            kind, payload, ended = self._converse(message, limits, progress, most, stays=key)
            if known and kind is None and ended["end"] == End.DONE:  # it had just gone, as nothing came for a while
                kind, payload, ended = self._converse(message, limits, progress, most, stays=key)
        return self._outcome(kind, payload, ended, limits)

    def _plan_of_staying(self, request: ReleaseRequest, limits: Limits) -> bytes | None:
        """The plan of a later stage, by the worker that stays for it, so that it need not go; None where none does."""
        with self._lock:
            staying = self._staying
            if staying is None or staying.run != request.first_stage().id or self._has_spoken(staying):
                return None
            message = jobs.message_of("plan", {"stays": True}, request.encode())
            kind, payload, ended = self._converse(message, limits, silent, ENVELOPE, stays=staying.key)
        if kind is None and ended["end"] == End.DONE:  # it had just gone
            return None
        return self._outcome(kind, payload, ended, limits)

    def _outcome(self, kind: Kind | None, payload: bytes, ended: dict[str, Any], limits: Limits) -> bytes:
        if self._closing and ended["end"] == "gone":
            ended["end"] = STOPPED
        if kind is Kind.RESULT and ended["end"] == End.DONE:
            return payload
        if kind is Kind.ERROR:
            raise error_of(payload, limits)
        raise WorkerEnded(sentence(ended["end"], limits, ended["code"]), ended["end"])

    def _converse(
        self, message: bytes, limits: Limits, progress: Progress, most: int, stays: str = ""
    ) -> tuple[Kind | None, bytes, dict[str, Any]]:
        """The last thing that a worker said, and how it ended; of one that stays after a result, that it is done."""
        finished = remains = False
        control = self._start()
        channel: socket.socket | None = None
        try:
            channel = self._channel(control, limits, stays)
            if channel is None:
                return None, b"", dict(_GONE)
            with suppress(OSError):  # it was killed meanwhile, which the supervisor will say
                channel.sendall(message)
            kind, payload, told = _listen(channel, control, progress, most, one=bool(stays))
            remains = bool(stays) and kind is Kind.RESULT and not told
            finished = bool(told) or remains
        finally:
            self._staying = _Staying(stays, channel) if remains and channel is not None else None
            if channel is not None and not remains:
                channel.close()
            if not finished:  # interrupted, or out of step: the next job has a supervisor of its own
                self._close()
        if remains:
            return kind, payload, {"end": End.DONE, "code": 0}
        if not told:
            return None, b"", dict(_GONE)
        ended = json.loads(told)
        self.last = Usage(ended["cpu"], ended["peak"])
        return kind, payload, ended

    def _channel(self, control: socket.socket, limits: Limits, stays: str) -> socket.socket | None:
        """To the worker that stayed, or to a new one; None when the supervisor is gone."""
        try:
            if self._staying is not None:
                control.sendall(again(limits))
                return self._staying.channel
            control.sendall(request_of(limits, stays=bool(stays)))
            if not select.select([control], [], [], STARTING)[0]:
                return None
            _, handed, _, _ = socket.recv_fds(control, MOST_MESSAGE, 1)
        except OSError:
            return None
        return socket.socket(fileno=handed[0]) if handed else None

    def _has_spoken(self, staying: _Staying) -> bool:
        """Whether there is news of a worker that has nothing to say: it has ended, or speaks out of turn."""
        return bool(select.select([staying.channel, *([self._control] if self._control else [])], [], [], 0)[0])

    def _dismiss(self) -> None:
        """End a worker that stays, and with it the records that it has open."""
        if self._staying is None or self._control is None:
            return
        self._staying.channel.close()
        self._staying = None
        if not (select.select([self._control], [], [], ENDING)[0] and _heard(self._control)):
            self._close()


def _listen(
    channel: socket.socket, control: socket.socket, progress: Progress, most: int, *, one: bool = False
) -> tuple[Kind | None, bytes, bytes]:
    """Hear a worker out, or, with `one`, only its next result. What it says last counts, and that it ended says the
    supervisor."""
    reader, kind, payload, hearing = Reader(most), None, b"", True
    while True:
        ready = select.select([channel, control] if hearing else [control], [], [])[0]
        if channel not in ready:
            return kind, payload, _heard(control)
        data = _heard(channel)
        hearing = bool(data)
        try:
            for kind, payload in reader.feed(data):
                if kind is Kind.PROGRESS:
                    _report(payload, progress)
            if one and kind is Kind.RESULT:
                return kind, payload, b""
        except (BrokenFrames, *UNREADABLE):
            raise no_message() from None


def _planned(said: bytes) -> Planned | str:
    """The plan that a worker sent, or why there is none."""
    try:
        values = json.loads(said)
        if "malformed" in values:
            return one_line(values["malformed"])[:1000]
        return Planned(plan_from_json(values["plan"]), int(values["memory"]))
    except UNREADABLE:
        raise no_message() from None


def _heard(source: socket.socket) -> bytes:
    try:
        return source.recv(_BLOCK)
    except OSError:  # reset by a worker that was killed before it had read everything
        return b""


def _report(payload: bytes, progress: Progress) -> None:
    what, done, of = json.loads(payload)
    progress(one_line(what)[:100], int(done), int(of))


def _is_needed(name: str) -> bool:
    """Whether a variable of the environment is for the worker too: no passphrase, no credential, nobody's token."""
    return name in _ENVIRONMENT or name.startswith(_PREFIXES)


def limits_of(settings: SiloSettings) -> Limits:
    """What a silo's worker may take for an answer."""
    policy = settings.policy
    memory = default_memory() if policy.most_memory is None else policy.most_memory
    return Limits(settings.worker.most_seconds, memory, policy.most_cpu_seconds, policy.most_disk)


def planning_limits_of(settings: SiloSettings) -> Limits:
    """What planning may take: a few times its CPU seconds by the clock, as the machine may be busy."""
    seconds = settings.worker.planning_seconds
    return Limits(10.0 * seconds, limits_of(settings).memory, seconds)
