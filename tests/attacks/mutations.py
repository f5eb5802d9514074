"""Damaged and made-up inputs for `tests.attacks.fuzz`, all from one seeded generator."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1, 10**30)
_DOUBLES = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-5, 1e-300, 5e-324, 1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "",
    "a",
    "north",
    "{}",
    "x" * 101,
    "x" * 5000,
    "a\nb",
    "\x1b[2J",
    "‮",
    "é",
    "\x00",
    "../a",
    "/",
    "nan",
    "1e999",
)
_BINARY = (b"", bytes(8), bytes(16), bytes(31), bytes(32), bytes(64), b"\xff" * 9)
DEEP = "<deep>"
"""Stands for lists in lists that no recursive reader follows, until `as_json` or `as_toml` writes them out."""
_DEEP = b"[" * 3000 + b"]" * 3000
_KEYS = ("", "silo", "kind", "a.b", "é", "x" * 300, "epsilon", "delta")


def damaged(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """`data` after one to eight accidents; `other` is what parts of it may be replaced with."""
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randint(0, len(mutant))
        match rng.randrange(9):
            case 0:
                mutant[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                mutant[at : at + 1] = bytes([mutant[at] ^ 1 << rng.randrange(8)]) if at < len(mutant) else b""
            case 2:
                mutant[at:at] = rng.randbytes(rng.randint(1, 12))
            case 3:
                del mutant[at : at + rng.choice((1, 2, 4, 20, 200))]
            case 4:
                mutant[at:at] = mutant[max(0, at - rng.randint(1, 40)) : at] * rng.choice((1, 1, 2, 50))
            case 5:
                del mutant[at:]
            case 6:
                number = rng.choice(_NUMBERS) & (2**64 - 1)
                packed = struct.pack(rng.choice("<>") + "Q", number)[: rng.choice((1, 2, 4, 8))]
                mutant[at : at + len(packed)] = packed
            case 7:
                start = rng.randint(0, len(other))
                mutant[at : at + rng.randint(0, 40)] = other[start : start + rng.randint(0, 40)]
            case _:
                mutant[at : at + 8] = struct.pack("<d", rng.choice(_DOUBLES))
    return bytes(mutant)


def filled(rng: random.Random, kind: type[Message], depth: int = 0) -> Message:
    """Well-framed nonsense: fields of `kind` with values that their types allow."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        for _ in range(rng.randint(0, 3 if field.is_repeated else 1)):
            _add(rng, message, field, depth)
    return message


def _add(rng: random.Random, message: Message, field: FieldDescriptor, depth: int) -> None:
    place = getattr(message, field.name)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if depth < 6:
            inner = place.add() if field.is_repeated else place
            inner.SetInParent()
            inner.MergeFrom(filled(rng, type(inner), depth + 1))
    elif field.is_repeated:
        place.append(_field_value(rng, field))
    else:
        setattr(message, field.name, _field_value(rng, field))


def _field_value(rng: random.Random, field: FieldDescriptor) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_DOUBLE:
            return rng.choice(_DOUBLES)
        case FieldDescriptor.TYPE_STRING:
            return rng.choice(_TEXTS)
        case FieldDescriptor.TYPE_BYTES:
            return rng.choice((*_BINARY, rng.randbytes(rng.randint(0, 40))))
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.TYPE_ENUM:
            return rng.randint(-1, 8)
        case FieldDescriptor.TYPE_UINT64:
            return rng.choice((0, 1, 2**63, 2**64 - 1))
        case _:
            return rng.choice((0, 1, 2, 3, 2**16, 2**31 - 1))


def one_part_replaced(rng: random.Random, valid: bytes, kind: type[Message]) -> bytes:
    """A valid message with one field, at any depth, replaced by nonsense: it gets past the first checks."""
    message = kind.FromString(valid)
    inside = message
    while True:
        field = rng.choice(inside.DESCRIPTOR.fields)
        value = getattr(inside, field.name)
        nested = field.type == FieldDescriptor.TYPE_MESSAGE and (value if field.is_repeated else [value])
        nested = [part for part in nested or () if part.DESCRIPTOR.fields]
        if not nested or rng.random() < 0.3:
            break
        inside = rng.choice(nested)
    if rng.random() < 0.7 or not field.is_repeated:
        inside.ClearField(field.name)
    for _ in range(rng.randint(0, 2)):
        _add(rng, inside, field, 0)
    return message.SerializeToString(deterministic=True)


def any_value(rng: random.Random, depth: int = 0) -> Any:
    """A value of JSON, most often a small one."""
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 2:
        return rng.choice(_NUMBERS)
    if kind < 4:
        return rng.choice(_DOUBLES)
    if kind == 4:
        return rng.choice(_TEXTS)
    if kind == 5:
        return rng.choice((None, True, False))
    if kind == 6:
        return {rng.choice(_KEYS): any_value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    if kind == 7 and rng.random() < 0.05:
        nested: Any = 1
        for _ in range(50):
            nested = [nested]
        return rng.choice((nested, DEEP))
    return [any_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]


def changed(rng: random.Random, value: Any) -> Any:
    """`value` (of JSON or TOML) with one to three of its parts replaced, left out, added or renamed."""
    root = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(root))
        holder, key = rng.choice(places)
        match rng.randrange(6):
            case 0 if holder is not root:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(_KEYS)] = holder.pop(key)
            case 2 if isinstance(holder, dict):
                holder[rng.choice(_KEYS)] = any_value(rng)
            case 3 if isinstance(holder, list) and holder is not root:
                holder.insert(key, copy.deepcopy(holder[key]))
            case 4:
                source, name = rng.choice(places)
                holder[key] = copy.deepcopy(source[name]) if _has(source, name) else None
            case _:
                holder[key] = any_value(rng)
    return root[0]


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _places(holder: Any) -> Any:
    """Every (container, key) inside `holder`."""
    waiting = [holder]
    while waiting:
        inside = waiting.pop()
        for key, value in inside.items() if isinstance(inside, dict) else enumerate(inside):
            yield inside, key
            if isinstance(value, dict | list):
                waiting.append(value)


def as_json(value: Any) -> bytes:
    """JSON of any nesting (`json.dumps` has a limit of its own)."""
    return json.dumps(value).encode().replace(json.dumps(DEEP).encode(), _DEEP)


def as_toml(value: dict[str, Any]) -> bytes:
    """A TOML document: top-level keys with inline tables. Null does not exist there, and is left out."""
    lines = [f"{json.dumps(key)} = {_inline(entry)}" for key, entry in value.items() if entry is not None]
    return "\n".join(lines).encode("utf-8", "surrogatepass").replace(json.dumps(DEEP).encode(), _DEEP)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        inside = (f"{json.dumps(key)} = {_inline(entry)}" for key, entry in value.items() if entry is not None)
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(entry) for entry in value if entry is not None) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
