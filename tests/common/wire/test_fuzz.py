"""Bytes from strangers: every decoder gives a value or one readable error, in bounded time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.clipping import ClippedSum, Layout, class_segment
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import Gaussian
from dpdd.common.privacy.privatise import privatise
from dpdd.common.wire.answer import Reason, Refusal, Shortfall, SignedReleaseBytes, decode_answer, encode_answer
from dpdd.common.wire.parsing import parse, shown
from dpdd.common.wire.payment import Payment
from dpdd.common.wire.plan import Cost, Declared, PlanReport, decode_report, encode_report
from dpdd.common.wire.release import decode_release, open_signed, release_of, sign, signer_of
from dpdd.common.wire.request import ReleaseRequest, decode_request
from dpdd.v1 import exchange_pb2, plan_pb2, refusal_pb2, release_pb2, request_pb2, transfer_pb2

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_REQUEST = ReleaseRequest(
    run="demo",
    method="sps",
    settings={"layers": [1, 2], "scale": 0.5},
    epsilon=1.0,
    delta=1e-5,
    classes=("a", "b"),
    shape=(1, 4, 4),
    public_seed=2**63,
    backbone_sha256=bytes(32),
    stage_input={"mean": np.arange(4.0)},
)
_TOTAL = ClippedSum(Layout((class_segment("sums", 2, 2),)))
_RELEASE = release_of(
    privatise(_TOTAL, Gaussian(4.0), SeededEntropy(1)),
    _REQUEST,
    silo="north",
    guarantee=guarantee(Gaussian(4.0), 1e-5),
    ledger_entry="ab" * 32,
    software="dpdd",
    payment=Payment("demo", "cd" * 32, 1, 2, Gaussian(4.0), 1e-12, position=7, reservations=3),
)
_SIGNED = sign(_RELEASE, _KEY)
_REFUSAL = encode_answer(Refusal(_REQUEST.id, "north", Reason.OVER_BUDGET, "too much", Shortfall(2.0, 0.5)))
_REPORT = encode_report(
    PlanReport(
        _REQUEST.id,
        "north",
        Declared(("a", "b"), (1, 4, 4), (0.0, 255.0), "resize"),
        "dpdd",
        Cost(1.0, 1e-5, 64),
        Refusal(_REQUEST.id, "north", Reason.OVER_BUDGET, "too much", Shortfall(2.0, 0.5)),
    )
)

Decoder = Callable[[bytes], Any]


def _parser(message: type[Message]) -> Decoder:
    return lambda data: parse(message, data)


DECODERS: dict[str, tuple[Decoder, bytes]] = {
    "request": (decode_request, _REQUEST.encode()),
    "release": (decode_release, _RELEASE.encode()),
    "signed release": (open_signed, _SIGNED),
    "signer": (signer_of, _SIGNED),
    "refusal": (decode_answer, _REFUSAL),
    "answer": (decode_answer, encode_answer(SignedReleaseBytes(_SIGNED))),
    "report": (decode_report, _REPORT),
    "manifest": (
        _parser(transfer_pb2.Manifest),
        transfer_pb2.Manifest(sha256=bytes(32), size=9, request_id=bytes(32)).SerializeToString(),
    ),
    "upload": (
        _parser(exchange_pb2.UploadPart),
        exchange_pb2.UploadPart(
            chunk=transfer_pb2.Chunk(payload_sha256=bytes(32), offset=7, data=b"data", size=4)
        ).SerializeToString(),
    ),
    "join": (
        _parser(exchange_pb2.JoinRequest),
        exchange_pb2.JoinRequest(token="t", certificate_request=b"c").SerializeToString(),
    ),
}
EACH = pytest.mark.parametrize("name", DECODERS)
ROUNDS = 120


def survives(decode: Decoder, data: bytes) -> bool:
    """Whether `data` decodes; any error is one of ours, in one printable line of readable length."""
    try:
        decode(data)
    except (WireError, IntegrityError) as error:
        text = str(error)
        assert text and text.isprintable() and len(text) < 400, text[:1000]
        assert error.__cause__ is None
        return False
    return True


@EACH
def test_valid_messages_decode(name: str) -> None:
    assert survives(*DECODERS[name])


@EACH
@settings(deadline=None, max_examples=ROUNDS)
@given(data=st.binary(max_size=300))
@example(data=b"")
@example(data=b"\x00")
@example(data=b"\xff" * 30)
@example(data=b"\x0b\x0c")  # a group
def test_random_bytes(name: str, data: bytes) -> None:
    survives(DECODERS[name][0], data)


@EACH
def test_every_truncation(name: str) -> None:
    decode, valid = DECODERS[name]
    for cut in range(len(valid)):
        survives(decode, valid[:cut])


@EACH
@settings(deadline=None, max_examples=ROUNDS)
@given(data=st.data())
def test_mutations(name: str, data: st.DataObject) -> None:
    decode, valid = DECODERS[name]
    mutant = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(mutant)))
        match data.draw(st.sampled_from(["set", "insert", "delete", "repeat"])):
            case "set":
                mutant[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "insert":
                mutant[at:at] = data.draw(st.binary(max_size=12))
            case "delete":
                del mutant[at : at + data.draw(st.integers(1, 20))]
            case "repeat":
                mutant[at:at] = mutant[max(0, at - data.draw(st.integers(1, 40))) : at]
    survives(decode, bytes(mutant))


_DOUBLES = st.floats() | st.sampled_from([0.0, 1.0, 1e-5, 1e-300, 1e300, 5e-324, -1.0])
_STRINGS = st.sampled_from(["", "a", "north", "{}", '{"a":1}', "x" * 101, "a\nb", "\x1b[2J", "‮", "é"]) | st.text(
    max_size=8
)
_BINARY = st.sampled_from([b"", bytes(8), bytes(16), bytes(31), bytes(32), bytes(64)]) | st.binary(max_size=9)


def _fill(draw: Callable[[st.SearchStrategy[Any]], Any], message: Message) -> None:
    """Well-framed nonsense: every field of `message` with a value that its type allows."""
    for field in message.DESCRIPTOR.fields:
        for _ in range(draw(st.integers(0, 3 if field.is_repeated else 1))):
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                inner = getattr(message, field.name)
                inner = inner.add() if field.is_repeated else inner
                inner.SetInParent()
                _fill(draw, inner)
                continue
            match field.type:
                case FieldDescriptor.TYPE_DOUBLE:
                    value: Any = draw(_DOUBLES)
                case FieldDescriptor.TYPE_STRING:
                    value = draw(_STRINGS)
                case FieldDescriptor.TYPE_BYTES:
                    value = draw(_BINARY)
                case FieldDescriptor.TYPE_BOOL:
                    value = draw(st.booleans())
                case FieldDescriptor.TYPE_ENUM:
                    value = draw(st.integers(-1, 8))
                case FieldDescriptor.TYPE_UINT64:
                    value = draw(st.integers(0, 2**64 - 1))
                case _:
                    value = draw(st.sampled_from([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 9))
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)


@pytest.mark.parametrize(
    "decode, message",
    [
        (decode_request, request_pb2.ReleaseRequest),
        (decode_release, release_pb2.Release),
        (decode_answer, refusal_pb2.Answer),
        (decode_report, plan_pb2.PlanReport),
        (open_signed, release_pb2.SignedRelease),
    ],
)
@settings(deadline=None, max_examples=ROUNDS)
@given(data=st.data())
def test_well_framed_nonsense(decode: Decoder, message: type[Message], data: st.DataObject) -> None:
    filled = message()
    _fill(data.draw, filled)
    survives(decode, filled.SerializeToString(deterministic=True))


PARTS: dict[str, tuple[Decoder, bytes, type[Message]]] = {
    "request": (decode_request, _REQUEST.encode(), request_pb2.ReleaseRequest),
    "release": (decode_release, _RELEASE.encode(), release_pb2.Release),
    "report": (decode_report, _REPORT, plan_pb2.PlanReport),
}


@pytest.mark.parametrize("name", PARTS)
@settings(deadline=None, max_examples=ROUNDS)
@given(data=st.data())
def test_valid_messages_with_one_part_replaced_by_nonsense(name: str, data: st.DataObject) -> None:
    """Gets past the first checks, to the ones behind them."""
    decode, valid, kind = PARTS[name]
    message, nonsense = kind.FromString(valid), kind()
    _fill(data.draw, nonsense)
    field = data.draw(st.sampled_from([f.name for f in kind.DESCRIPTOR.fields]))
    message.ClearField(field)
    keep = kind()
    keep.CopyFrom(nonsense)
    for other in kind.DESCRIPTOR.fields:
        if other.name != field:
            keep.ClearField(other.name)
    message.MergeFrom(keep)
    survives(decode, message.SerializeToString(deterministic=True))


@settings(deadline=None, max_examples=ROUNDS)
@given(
    st.lists(st.sampled_from([0, 1, 2, 2**16, 2**31, 2**32 - 1]), max_size=9),
    st.integers(0, 7),
    st.sampled_from([0, 1, 2, 4, 8, 16, 64]),
)
def test_arrays_of_any_shape(shape: list[int], dtype: int, size: int) -> None:
    message = request_pb2.ReleaseRequest.FromString(_REQUEST.encode())
    message.centre.add(name="x", dtype=dtype, shape=shape, data=bytes(size))  # type: ignore[arg-type]
    survives(decode_request, message.SerializeToString(deterministic=True))


@settings(deadline=None, max_examples=ROUNDS)
@given(st.text(max_size=60) | st.text('[]{}",:0123456789.eE+-\\u trufalsn', max_size=60))
@example('{"a":-0}')
@example('{"a":"\\ud800"}')
@example('{"a":1E400}')
def test_settings_of_any_text(text: str) -> None:
    message = request_pb2.ReleaseRequest.FromString(_REQUEST.encode())
    message.settings = text
    data = message.SerializeToString(deterministic=True)
    if survives(decode_request, data):
        assert decode_request(data).encode() == data


@settings(deadline=None)
@given(st.text(max_size=300))
def test_foreign_text_is_shown_in_one_printable_line(text: str) -> None:
    assert shown(text).isprintable() and len(shown(text)) <= 2 * 82


# Bombs: in a process of their own, so that the memory of protobuf's C code is counted, too.

_BOMBS = r"""
import json, time
from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.wire.answer import decode_answer
from dpdd.common.wire.plan import decode_report
from dpdd.common.wire.release import decode_release, open_signed
from dpdd.common.wire.request import ReleaseRequest, decode_request
from dpdd.v1 import request_pb2

def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) // 1024

def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])

def field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value

request = ReleaseRequest(run="a", method="m", settings={}, epsilon=1.0, delta=1e-5, classes=("a", "b"), shape=(4,),
                         public_seed=1)

def with_(**changes):
    message = request_pb2.ReleaseRequest.FromString(request.encode())
    for name, value in changes.items():
        message.ClearField(name)
        if isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message.SerializeToString(deterministic=True)

MILLION, LARGE = 1_000_000, 20_000_000
ids = field(1, bytes(32)) + field(10, bytes(32))
bombs = {
    "2 MB of empty arrays": (decode_release, lambda: b"\x2a\x00" * MILLION),
    "2 MB of empty event parts": (decode_release, lambda: field(6, b"\x0a\x00" * MILLION)),
    "2 MB of empty classes": (decode_request, lambda: b"\x4a\x00" * MILLION),
    "2 MB of one field": (decode_request, lambda: b"\x10\x01" * MILLION),
    "2 MB of empty refusals": (decode_answer, lambda: b"\x12\x00" * MILLION),
    "20 MB of packed ones": (decode_request, lambda: field(10, b"\x01" * LARGE)),
    "20 MB of ones behind a request": (decode_request, lambda: request.encode() + field(10, b"\x01" * LARGE)),
    "packed twos": (decode_request, lambda: with_(shape=[2] * 19_000)),
    "packed extents": (decode_request, lambda: with_(shape=[2**32 - 1] * 3_900)),
    "array extents": (
        decode_release, lambda: field(5, field(1, b"x") + b"\x10\x01" + field(3, b"\xff\xff\xff\xff\x0f" * 3_900))
    ),
    "20 MB of extents in an array": (decode_release, lambda: field(5, field(1, b"x") + field(3, b"\x02" * LARGE))),
    "a length of 2^63": (decode_request, lambda: b"\x0a" + varint(2**63) + b"x"),
    "a length of 2^70": (decode_request, lambda: b"\x0a" + b"\xff" * 10),
    "endless varints": (decode_request, lambda: b"\x80" * LARGE),
    "a tag without end": (open_signed, lambda: b"\xff" * LARGE),
    "a name of 20 MB": (decode_request, lambda: with_(run="a" * LARGE)),
    "a class name of 20 MB": (decode_request, lambda: with_(classes=["a", "b" * LARGE])),
    "an array name of 20 MB": (
        decode_release,
        lambda: ids + field(2, b"a") + field(3, b"a") + b"\x20\x01" + field(5, field(1, b"x" * LARGE)),
    ),
    "settings of 20 MB": (decode_request, lambda: with_(settings='"' + "x" * LARGE + '"')),
    "deep lists": (decode_request, lambda: with_(settings="[" * 65_000)),
    "deep objects": (decode_request, lambda: with_(settings='{"a":' * 10_000 + "1" + "}" * 10_000)),
    "many small lists": (decode_request, lambda: with_(settings='{"a":[' + ",".join(["[]"] * 20_000) + ",1e0]}")),
    "a number of 60,000 digits": (decode_request, lambda: with_(settings='{"a":' + "9" * 60_000 + "}")),
    "a report of 20 MB": (decode_report, lambda: field(3, b"\x0a\x01a" * 6_000_000)),
    "2 MB of empty declarations": (decode_report, lambda: field(3, b"\x0a\x00" * 250_000)),
    "a refusal of 20 MB": (
        decode_answer, lambda: field(2, field(1, bytes(32)) + field(2, b"a") + b"\x18\x01" + field(4, b"x" * LARGE))
    ),
    "an accountant of 20 MB": (decode_release, lambda: ids + field(7, field(3, b"x" * LARGE))),
}
for name, (decode, make) in bombs.items():
    data = make()
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # the peak starts again from here
    before = memory("VmRSS")
    start = time.process_time()
    try:
        decode(data)
        outcome, text = "accepted", ""
    except (WireError, IntegrityError) as error:
        outcome, text = "refused", str(error)
    except BaseException as error:
        outcome, text = type(error).__name__, str(error)[:200]
    seconds = time.process_time() - start
    grown = memory("VmHWM") - before
    print(json.dumps([name, outcome, text[:1000], seconds, grown]), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of its memory from /proc")
def test_bombs_are_refused_quickly_and_in_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", _BOMBS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 27
    for name, outcome, text, seconds, megabytes in rows:
        assert outcome == "refused", (name, outcome, text)
        assert text.isprintable() and len(text) < 400, (name, text)
        assert seconds < 1.0, (name, seconds)
        # The bytes themselves are at most 20 MB; protobuf may hold them once more, and a text of them twice.
        assert megabytes < 90, (name, megabytes)
