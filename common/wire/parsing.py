"""Parsing untrusted bytes as protobuf messages.

protobuf's own parser is safe but generous: two bytes of an empty nested message become a hundred in memory, and unknown
fields are kept. So the bytes are walked once, by the message's descriptor, before they are parsed: unknown fields,
groups, overlong lengths and more than `MOST_FIELDS` fields are refused there.

>>> from dpdd.v1.refusal_pb2 import Refusal
>>> parse(Refusal, b"\\xff\\xff")
Traceback (most recent call last):
dpdd.common.errors.WireError: not a dpdd.v1.Refusal: a field ends in the middle
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from dpdd.common.errors import WireError

MOST_FIELDS = 20_000
MOST_BYTES = 1 << 30
MOST_HEADER = 1 << 20

M = TypeVar("M", bound=Message)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
_WIRE_TYPE = {
    FieldDescriptor.TYPE_DOUBLE: _EIGHT,
    FieldDescriptor.TYPE_FIXED64: _EIGHT,
    FieldDescriptor.TYPE_FIXED32: _FOUR,
    FieldDescriptor.TYPE_STRING: _LENGTH,
    FieldDescriptor.TYPE_BYTES: _LENGTH,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH,
}


def parse(message: type[M], data: bytes, *, most_bytes: int = MOST_BYTES, canonical: bool = False) -> M:
    """`data` as a `message`, or a WireError; `canonical` also refuses any second encoding of the same content."""
    name = message.DESCRIPTOR.full_name
    if len(data) > most_bytes:
        raise WireError(f"not a {name}: {len(data)} bytes are more than the {most_bytes} that one may have")
    try:
        _walk(memoryview(data), cast(Descriptor, message.DESCRIPTOR), MOST_FIELDS)
        parsed = message.FromString(data)
    except (DecodeError, _Broken) as error:
        raise WireError(f"not a {name}: {_first_line(error)}") from None
    if canonical and parsed.SerializeToString(deterministic=True) != data:
        raise WireError(f"not a {name}: its bytes are not in canonical form")
    return parsed


def check(condition: bool, message: str) -> None:
    """WireError with `message` unless `condition`."""
    if not condition:
        raise WireError(message)


def check_name(what: str, name: str) -> str:
    """A name that is safe in file names, tables and certificates."""
    check(
        _NAME.fullmatch(name) is not None,
        f"the {what} {shown(name)} is not a name: 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first",
    )
    return name


def check_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """The public class list: 2 to 10,000 distinct printable names."""
    check(2 <= len(classes) <= 10_000, f"a class list has 2 to 10,000 classes, not {len(classes)}")
    check(len(set(classes)) == len(classes), "a class list names a class twice")
    for name in classes:
        check(
            0 < len(name) <= 100 and name.isprintable(), f"the class name {shown(name)} is empty, long or not printable"
        )
    return tuple(classes)


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The public shape of one record: (channels, height, width), or (columns,) for tables."""
    check(len(shape) in (1, 3), f"a record's shape has 1 or 3 extents, not {len(shape)}")
    size = math.prod(shape)
    check(0 < size <= 1 << 24, f"a record of shape {tuple(shape)} has no entry, or more than 2^24")
    return tuple(shape)


def shown(text: str) -> str:
    """Foreign text, safe to print in one line."""
    clean = "".join(c if c.isprintable() else "?" for c in text[:80])
    return repr(clean + ("…" if len(text) > 80 else ""))


def spans(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """The fields of one message: number, where the field starts, where its content starts, where it ends.

    Reads tags and lengths only, so a message in a mapped file costs no memory. WireError when the framing is broken.
    """
    at, end = 0, len(data)
    try:
        while at < end:
            start = at
            tag, at = _varint(data, at)
            content = at
            match tag & 7:
                case 0:
                    _, at = _varint(data, at)
                case 1:
                    at += 8
                case 2:
                    length, content = _varint(data, at)
                    at = content + length
                case 5:
                    at += 4
                case _:
                    raise _Broken(f"field {tag >> 3} has the wrong type")
            if at > end:
                raise _Broken("a field ends in the middle")
            yield tag >> 3, start, content, at
    except _Broken as error:
        raise WireError(f"not a message: {error}") from None


def without(data: memoryview, number: int, *, most: int) -> tuple[bytes, list[tuple[int, int]]]:
    """A message without its (length-delimited) fields `number`, and where their contents lie.

    The former is small and can be parsed; the latter are left where they are. With `most` = 1 there is always one.
    """
    rest, contents = bytearray(), []
    for field, start, content, end in spans(data):
        if field != number or data[start] & 7 != _LENGTH:
            rest += data[start:end]
            check(len(rest) <= MOST_HEADER, f"a message with more than {MOST_HEADER} bytes beside its large fields")
        else:
            contents.append((content, end))
            check(len(contents) <= most, f"a message with more than {most} large fields of one kind")
    return bytes(rest), contents or [(len(data), len(data))] * (most == 1)


class _Broken(Exception):
    pass


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _walk(data: memoryview, descriptor: Descriptor, budget: int) -> int:
    """Check the framing of one message; the field budget that is left."""
    at, end = 0, len(data)
    while at < end:
        budget -= 1
        if budget < 0:
            raise _Broken(f"more than {MOST_FIELDS} fields")
        tag, at = _varint(data, at)
        field: Any = descriptor.fields_by_number.get(tag >> 3)
        if field is None:
            raise _Broken(f"unknown field {tag >> 3}")
        kind = tag & 7
        expected = _WIRE_TYPE.get(field.type, _VARINT)
        if kind == _VARINT and expected == _VARINT:
            _, at = _varint(data, at)
        elif kind == _EIGHT and expected == _EIGHT:
            at += 8
        elif kind == _FOUR and expected == _FOUR:
            at += 4
        elif kind == _LENGTH and (expected == _LENGTH or field.is_repeated):
            length, at = _varint(data, at)
            if length > end - at:
                raise _Broken("a field ends in the middle")
            if field.message_type is not None:
                budget = _walk(data[at : at + length], field.message_type, budget)
            elif expected != _LENGTH:
                budget -= length  # packed numbers: at most one per byte
                if budget < 0:
                    raise _Broken(f"more than {MOST_FIELDS} fields")
            at += length
        else:
            raise _Broken(f"field {tag >> 3} has the wrong type")
    if at != end:
        raise _Broken("a field ends in the middle")
    return budget


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _Broken("a field ends in the middle")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _Broken("a number is longer than 64 bits")
