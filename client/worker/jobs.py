"""What a worker does: one job from its channel, and what came of it back into the channel.

A job is a header in JSON and the bytes of a request. A result is protobuf or JSON, never a pickle: whoever reads it has
the key and the ledger, and the worker has read files that might be hostile. All that can be said of records in it is
what is said in the release, whose sums carry their noise already.
"""

from __future__ import annotations

import errno
import json
import math
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dpdd.client.answering import Assignment, is_last, make, opened_records
from dpdd.client.config import SiloSettings
from dpdd.client.estimates import memory_bound
from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records import Records
from dpdd.client.worker.frames import Kind, Reader, frame
from dpdd.client.worker.plan_json import plan_from_json, plan_to_json
from dpdd.common import errors
from dpdd.common.config import one_line
from dpdd.common.data.formats import import_readers
from dpdd.common.errors import ConfigError, DpddError, sayable
from dpdd.common.methods.registry import QUERIES, query
from dpdd.common.methods.request_plan import planned, settings_of
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import Progress
from dpdd.common.randomness import uniforms
from dpdd.common.wire.parsing import parse
from dpdd.common.wire.payment import payment_from_wire, payment_to_wire
from dpdd.common.wire.request import Kind as RequestKind
from dpdd.common.wire.request import decode_request
from dpdd.v1 import release_pb2

STAY_SECONDS = 120.0
"""So long a worker stays for the next stage, with the records open."""
PROGRESS_SECONDS = 0.05
"""So often, at most, the node hears how far a phase is."""
_LENGTH = struct.Struct("!I")
_BLOCK = 1 << 20

_NO_MEMORY = ("allocate memory", "can't start new thread")
"""What torch and Python say, as RuntimeError, where the system gives them no more."""

Job = Callable[[Mapping[str, Any], bytes, Progress], bytes]
"""From its header, the request's bytes and a progress reporter to what comes of it."""


def answer(header: Mapping[str, Any], request: bytes, progress: Progress) -> bytes:
    """The encoded release for an assignment, not signed."""
    return make(assignment_from_json(header, request), progress).encode()


def plan(_header: Mapping[str, Any], request: bytes, _progress: Progress) -> bytes:
    """The plan of an answer and a bound on its memory, or why there is none; no record is read for it."""
    asked = decode_request(request)
    try:
        settings = settings_of(asked)
        answered = planned(asked, settings)
        memory = memory_bound(asked, settings, answered)
        return json.dumps({"plan": plan_to_json(answered), "memory": memory}).encode()
    except (ConfigError, ValueError) as error:
        return json.dumps({"malformed": one_line(error)[:1000]}).encode()


def measure(header: Mapping[str, Any], request: bytes, progress: Progress) -> bytes:
    """CPU seconds of the mechanism over so many made-up records, for each number in the header; none is anybody's.

    Of a method's stages, the one that is asked for; of a finished set, the first.
    """
    asked = decode_request(request)
    chosen, settings = query(asked.method), settings_of(asked)
    answered = plan_from_json(header["plan"])
    if asked.kind is RequestKind.DISTILLED_SET:
        answered = chosen.plan(asked, settings)
    seconds = []
    for count in header["records"]:
        records = made_up(count, asked.shape, len(asked.classes))
        started = time.process_time()
        mechanism(chosen).run(records, asked, settings, answered, SeededEntropy(0), progress)
        seconds.append(time.process_time() - started)
    return json.dumps(seconds).encode()


def made_up(count: int, shape: tuple[int, ...], classes: int) -> Records:
    """Noise in the shape of records."""
    values = uniforms(0, "records to measure with", count * math.prod(shape)).reshape(count, *shape)
    features = values.astype(np.float32) if len(shape) == 1 else (values * 256.0).astype(np.uint8)
    return Records(features, np.arange(count, dtype=np.int64) % classes)


JOBS: Mapping[str, Job] = {"answer": answer, "plan": plan, "measure": measure}


def assignment_to_json(assignment: Assignment) -> dict[str, Any]:
    """All of it but the request."""
    key, paid = assignment.holdout_key, assignment.payment
    return {
        "folder": str(assignment.folder),
        "settings": assignment.settings.model_dump(mode="json", exclude_unset=True),
        "plan": plan_to_json(assignment.plan),
        "ledger_entry": assignment.ledger_entry,
        "holdout_key": None if key is None else key.hex(),
        "payment": None if paid is None else payment_to_wire(paid).SerializeToString(deterministic=True).hex(),
    }


def assignment_from_json(header: Mapping[str, Any], request: bytes) -> Assignment:
    """The inverse of `assignment_to_json`."""
    key, paid = header["holdout_key"], header["payment"]
    return Assignment(
        Path(header["folder"]),
        SiloSettings.model_validate(header["settings"]),
        decode_request(request),
        plan_from_json(header["plan"]),
        header["ledger_entry"],
        None if key is None else bytes.fromhex(key),
        None if paid is None else payment_from_wire(parse(release_pb2.Payment, bytes.fromhex(paid))),
    )


def message_of(job: str, header: Mapping[str, Any], request: bytes) -> bytes:
    """A job as a message to a worker."""
    head = json.dumps({"job": job, **header}).encode()
    return frame(Kind.JOB, _LENGTH.pack(len(head)) + head + request)


def serve_job(channel: socket.socket, jobs: Mapping[str, Job] = JOBS) -> None:
    """Read the one job, do it, and send what came of it; or one after the other, in a worker that stays.

    Then the records are opened for the first answer. They are all that is kept for the others, with the embeddings that
    they keep until the last stage.
    """
    records: Records | None = None
    for payload in _received(channel):
        (length,) = _LENGTH.unpack_from(payload)
        header = json.loads(payload[_LENGTH.size : _LENGTH.size + length])
        request, stays, progress = payload[_LENGTH.size + length :], "stays" in header, _reporter(channel)
        try:
            if stays and header["job"] == "answer":
                assignment = assignment_from_json(header, request)
                records = opened_records(assignment, progress) if records is None else records
                result = make(assignment, progress, records).encode()
                if records.kept is not None and is_last(assignment.request):
                    records.kept.clear()
            else:
                result = jobs[header["job"]](header, request, progress)
        except BaseException as error:
            channel.sendall(frame(Kind.ERROR, json.dumps(_described(error)).encode()))
            return
        channel.sendall(frame(Kind.RESULT, result))
        if not stays:
            return


def _received(channel: socket.socket) -> Iterator[bytes]:
    """The jobs; no further one when none comes for a while."""
    reader = Reader()
    with suppress(TimeoutError):
        while data := channel.recv(_BLOCK):
            for _, payload in reader.feed(data):
                channel.settimeout(None)
                yield payload
                channel.settimeout(STAY_SECONDS)


def _reporter(channel: socket.socket) -> Progress:
    """Tells the node of every phase, and now and then how far it is."""
    last, when = "", 0.0

    def progress(what: str, done: int, of: int) -> None:
        nonlocal last, when
        now = time.monotonic()
        if what != last or done >= of or now - when >= PROGRESS_SECONDS:
            last, when = what, now
            channel.sendall(frame(Kind.PROGRESS, json.dumps([what, done, of]).encode()))

    return progress


def _described(error: BaseException) -> dict[str, str]:
    """What the node's operator may know of it: a foreign error's text may quote a record, and stays here."""
    kind = type(error).__name__
    known = isinstance(error, DpddError) and getattr(errors, kind, None) is type(error)
    return {
        "error": _limit_of(error) or (kind if known else "DpddError"),
        "text": one_line(sayable(error))[:2000],
        "where": "".join(traceback.format_tb(error.__traceback__))[-8000:],
    }


def _limit_of(error: BaseException) -> str:
    """Which limit the error is about, if it is about one: the libraries say it in words of their own."""
    while True:
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, MemoryError) or number == errno.ENOMEM or any(word in str(error) for word in _NO_MEMORY):
            return "memory"
        if number == errno.EFBIG:
            return "disk"
        if (cause := error.__cause__ or error.__context__) is None:
            return ""
        error = cause


def import_everything() -> None:
    """What any job needs, so that workers need not import it one by one. No number is computed here."""
    import scipy.special  # noqa: F401

    import_readers()
    for each in QUERIES.values():
        mechanism(each)
