"""The supervisor: forks a worker for each job, watches it, kills it at its limits, and says how it ended.

It runs one job at a time, and never reads what a job says. A worker may stay for the next stage of a run: the node says
`AGAIN` then, with the next job's limits of time, which count anew. When the node that started it ends, however it does,
the socket between them closes: the supervisor ends, and the kernel kills the worker with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path

from dpdd.client.worker.limits import Limits, cpu_seconds_of, die_with, own_bytes

WATCH_SECONDS = 0.05
MOST_MESSAGE = 1 << 12
AGAIN = b"again"
"""From the node: the worker that stayed has another job."""

Serve = Callable[[socket.socket], None]
"""What a worker does: one job, or all that it stays for, from the channel and into it."""


class End(StrEnum):
    """How a worker ended."""

    DONE = "done"
    MEMORY = "memory"
    CPU = "cpu"
    TIME = "time"
    KILLED = "killed"
    SIGNAL = "signal"
    EXIT = "exit"


def main(serve_job: Serve | None = None) -> None:
    """Supervise on the socket whose number is the first argument, until its other end is closed."""
    if serve_job is None:
        from dpdd.client.worker import jobs

        jobs.import_everything()
        serve_job = jobs.serve_job
    with socket.socket(fileno=int(sys.argv[1])) as control:
        supervise(control, serve_job)
    os._exit(0)  # there is nothing to tidy up, and taking torch down takes a while


def supervise(control: socket.socket, serve_job: Serve) -> None:
    """Fork a worker whenever the node sends limits, and tell it how each ended."""
    while message := control.recv(MOST_MESSAGE):
        if message.startswith(AGAIN):  # to a worker that had just ended, which the node hears
            continue
        values = json.loads(message)
        stays = bool(values.pop("stays"))
        limits = Limits(**values)
        near, far = socket.socketpair()
        supervisor = os.getpid()
        if (worker := os.fork()) == 0:
            _work(supervisor, control, near, far, limits, stays, serve_job)
        near.close()
        socket.send_fds(control, [b"started"], [far.fileno()])
        far.close()
        ended = _watch(worker, limits, stays, control)
        if ended is None:
            return
        control.sendall(json.dumps(ended).encode())


def request_of(limits: Limits, *, stays: bool = False) -> bytes:
    """The message that has a worker started, for one job or for several."""
    return json.dumps({**asdict(limits), "stays": stays}).encode()


def again(limits: Limits) -> bytes:
    """The message that announces one more job to a worker that stays."""
    return AGAIN + request_of(limits, stays=True)


def _limits_in(message: bytes, known: Limits) -> Limits:
    values = json.loads(message.removeprefix(AGAIN) or b"null")
    return known if values is None else Limits(**{name: value for name, value in values.items() if name != "stays"})


def _work(
    supervisor: int,
    control: socket.socket,
    near: socket.socket,
    far: socket.socket,
    limits: Limits,
    stays: bool,
    serve_job: Serve,
) -> None:
    """In the worker, which never returns: nothing is open but its channel, and nothing is printed."""
    code = 1
    try:
        os.setsid()  # a group of its own: what it starts ends with it
        die_with(supervisor)
        control.close()
        far.close()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("500")  # no node dies for its worker
        limits.apply(stays=stays)
        serve_job(near)
        code = 0
    finally:
        os._exit(code)


def _watch(worker: int, limits: Limits, stays: bool, control: socket.socket) -> dict[str, object] | None:
    """Wait for its end, and bring it about at a limit; None when the node is gone."""
    ends, reason, peak, spent = time.monotonic() + limits.seconds, None, 0, 0.0
    handle = os.pidfd_open(worker)
    sources: list[int] = [handle, control.fileno()]
    try:
        while handle not in (ready := select.select(sources, [], [], WATCH_SECONDS)[0]):
            if ready:
                if not stays or not (message := control.recv(MOST_MESSAGE)).startswith(AGAIN):
                    break
                limits = _limits_in(message, limits)
                ends, spent = time.monotonic() + limits.seconds, cpu_seconds_of(worker)
                continue
            peak = max(peak, own_bytes(worker))
            if reason is None and (reason := _limit_met(worker, limits, stays, peak, spent, ends)) is not None:
                _kill(worker)
        if handle not in ready:  # else the node says nothing while a worker works: it is gone
            _kill(worker)
        status, usage = os.wait4(worker, 0)[1:]
    finally:
        os.close(handle)
        _kill(worker)  # what it started, if anything
    code = os.waitstatus_to_exitcode(status)
    if handle not in ready:
        return None
    cpu = usage.ru_utime + usage.ru_stime
    if reason is None or code >= 0:
        reason = _end(code)
        if reason is End.KILLED and limits.cpu_seconds is not None and cpu >= limits.cpu_seconds:
            reason = End.CPU
    return {"end": reason, "code": code, "cpu": cpu, "peak": 1024 * usage.ru_maxrss, "own": peak}


def _limit_met(worker: int, limits: Limits, stays: bool, peak: int, spent: float, ends: float) -> End | None:
    """The limit that a job has come to: of what its worker had `spent` before is not spoken."""
    if peak > limits.memory:
        return End.MEMORY
    if stays and limits.cpu_seconds is not None and cpu_seconds_of(worker) - spent > limits.cpu_seconds:
        return End.CPU
    return End.TIME if time.monotonic() > ends else None


def _end(code: int) -> End:
    if code >= 0:
        return End.DONE if code == 0 else End.EXIT
    return {signal.SIGKILL: End.KILLED, signal.SIGXCPU: End.CPU}.get(signal.Signals(-code), End.SIGNAL)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
