"""What is encoded comes back; what is not canonical, not signed or not possible does not."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpdd.common.data.table.schema import TableSchema
from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.privacy.accounting import Guarantee, guarantee
from dpdd.common.privacy.clipping import ClippedSum, Layout, class_segment
from dpdd.common.privacy.entropy import SeededEntropy, SystemEntropy
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, PoissonGaussian, compose
from dpdd.common.privacy.privatise import Privatised, privatise
from dpdd.common.wire.answer import (
    Reason,
    Refusal,
    Shortfall,
    SignedReleaseBytes,
    decode_answer,
    encode_answer,
)
from dpdd.common.wire.arrays import from_wire, to_wire
from dpdd.common.wire.privacy import event_from_wire, event_to_wire, guarantee_from_wire, guarantee_to_wire
from dpdd.common.wire.release import Release, decode_release, open_signed, release_of, sign, signer_of
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request
from dpdd.v1 import array_pb2, privacy_pb2, refusal_pb2, release_pb2, request_pb2

REQUEST = ReleaseRequest(
    run="demo",
    method="dp-merf",
    settings={"features": 100, "names": ["a", "ü"], "rate": 0.5, "deep": {"on": True, "off": None}},
    epsilon=1.0,
    delta=1e-5,
    classes=("cat", "dog"),
    shape=(1, 8, 8),
    public_seed=7,
    stage=2,
    backbone_sha256=bytes(32),
    stage_input={"b": np.arange(6.0).reshape(2, 3), "a": np.arange(3)},
)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def privatised(seed: int = 1) -> Privatised:
    total = ClippedSum(Layout((class_segment("sums", 2, 2), class_segment("counts", 1, 2))))
    total.add(np.array([[0.1, 0.2, 0.1]]), np.array([0]))
    return privatise(total, Gaussian(4.0), SeededEntropy(seed))


def release(**changes: Any) -> Release:
    fields: dict[str, Any] = {
        "silo": "north",
        "guarantee": guarantee(Gaussian(4.0), 1e-5),
        "ledger_entry": "ab" * 32,
        "software": "dpdd 0.1.0",
    }
    return release_of(privatised(), REQUEST, **(fields | changes))


# Strategies

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
words = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
arrays = hnp.arrays(
    st.sampled_from(["<i8", "<i4", "<i2", "u1", "<f4", "<f8"]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
requests = st.builds(
    ReleaseRequest,
    run=names,
    method=names,
    settings=st.dictionaries(words, json_values, max_size=4),
    epsilon=st.floats(0, 32, exclude_min=True) | st.just(math.inf),
    delta=st.floats(0, 0.01, exclude_min=True),
    classes=st.lists(words, min_size=2, max_size=5, unique=True).map(tuple),
    shape=st.one_of(
        st.tuples(st.integers(1, 2**24)),
        st.tuples(st.integers(1, 4), st.integers(1, 64), st.integers(1, 64)),
    ),
    public_seed=st.integers(0, 2**64 - 1),
    kind=st.sampled_from(Kind),
    stage=st.integers(0, 2**32 - 1),
    backbone_sha256=st.just(b"") | st.binary(min_size=32, max_size=32),
    stage_input=st.dictionaries(names, arrays, max_size=3),
)
sigmas = st.floats(1e-6, 1e9)
counts = st.integers(1, 2**20)
simple_events = st.one_of(
    st.builds(Gaussian, sigmas, counts),
    st.builds(PoissonGaussian, sigmas, st.floats(0, 1, exclude_min=True), counts),
    st.just(NonPrivate()),
)
events = st.lists(simple_events, min_size=1, max_size=5).map(lambda parts: compose(*parts))
refusals = st.builds(
    Refusal,
    request_id=st.binary(min_size=32, max_size=32).map(bytes.hex),
    silo=names,
    reason=st.sampled_from(Reason),
    message=st.text(max_size=200).filter(str.isprintable),
    shortfall=st.none() | st.builds(Shortfall, st.floats(0, allow_nan=False), st.floats(0, 1e6)),
)


def same_arrays(one: Any, two: Any) -> bool:
    return one.keys() == two.keys() and all(
        one[name].dtype == two[name].dtype
        and one[name].shape == two[name].shape
        and one[name].tobytes() == two[name].tobytes()
        for name in one
    )


# Requests


@settings(deadline=None)
@given(requests)
def test_requests_come_back(request_: ReleaseRequest) -> None:
    data = request_.encode()
    back = decode_request(data)
    assert back == request_
    assert same_arrays(back.stage_input, request_.stage_input)
    assert back.encode() == data and back.id == request_.id == hashlib.sha256(data).hexdigest()


def test_the_same_content_has_the_same_id() -> None:
    again = dataclasses.replace(
        REQUEST,
        settings={key: REQUEST.settings[key] for key in sorted(REQUEST.settings, reverse=True)},
        stage_input={name: np.asfortranarray(array) for name, array in reversed(REQUEST.stage_input.items())},
    )
    assert list(again.settings) != list(REQUEST.settings) and list(again.stage_input) != list(REQUEST.stage_input)
    assert again.id == REQUEST.id
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in REQUEST.stage_input.items()}
    assert dataclasses.replace(REQUEST, stage_input=swapped).id == REQUEST.id


@pytest.mark.parametrize(
    "change",
    [
        {"run": "other"},
        {"method": "sps"},
        {"settings": {"features": 101}},
        {"epsilon": 1.0000001},
        {"delta": 1e-6},
        {"classes": ("dog", "cat")},
        {"shape": (1, 8, 9)},
        {"public_seed": 8},
        {"kind": Kind.DISTILLED_SET},
        {"stage": 3},
        {"backbone_sha256": b""},
        {"stage_input": {}},
        {"stage_input": {"a": np.arange(3), "b": np.arange(6.0).reshape(3, 2)}},
    ],
)
def test_other_content_has_another_id(change: dict[str, Any]) -> None:
    assert dataclasses.replace(REQUEST, **change).id != REQUEST.id


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


@pytest.mark.parametrize(
    "data",
    [
        REQUEST.encode() + b"\x10\x02",  # stage a second time, with the same value
        REQUEST.encode() + _field(1, b"demo"),  # run a second time
        b"\x10\x02" + REQUEST.encode(),
        REQUEST.encode().replace(b"\x10\x02", b"\x10\x82\x00", 1),  # stage as an overlong number
        dataclasses.replace(REQUEST, stage=0).encode() + b"\x10\x00",  # a default that is spelled out
        REQUEST.encode() + b"\x98\x06\x01",  # field 99
        REQUEST.encode() + _field(12, b""),  # an array of nothing
    ],
)
def test_a_second_encoding_of_a_request_is_refused(data: bytes) -> None:
    assert data != REQUEST.encode()
    with pytest.raises(WireError):
        decode_request(data)


def test_fields_in_another_order_are_refused() -> None:
    message = request_pb2.ReleaseRequest.FromString(REQUEST.encode())
    head, tail = request_pb2.ReleaseRequest(), request_pb2.ReleaseRequest()
    head.CopyFrom(message)
    head.ClearField("run")
    tail.run = message.run
    shuffled = head.SerializeToString(deterministic=True) + tail.SerializeToString(deterministic=True)
    assert request_pb2.ReleaseRequest.FromString(shuffled) == message
    with pytest.raises(WireError, match="canonical"):
        decode_request(shuffled)


@pytest.mark.parametrize(
    "field, value, complaint",
    [
        ("run", "", "not a name"),
        ("run", "../up", "not a name"),
        ("run", "a" * 65, "not a name"),
        ("method", "two words", "not a name"),
        ("kind", 0, "no kind of release"),
        ("kind", 77, "no kind of release"),
        ("epsilon", 0.0, "epsilon"),
        ("epsilon", -1.0, "epsilon"),
        ("epsilon", math.nan, "epsilon"),
        ("epsilon", 33.0, "epsilon"),
        ("delta", 0.0, "delta"),
        ("delta", 0.02, "delta"),
        ("delta", math.nan, "delta"),
        ("settings", "", "JSON"),
        ("settings", "[]", "object"),
        ("settings", '{"a": 1}', "canonical"),
        ("settings", '{"b":1,"a":1}', "canonical"),
        ("settings", '{"a":1,"a":1}', "canonical"),
        ("settings", '{"a":1e2}', "canonical"),
        ("settings", '{"a":NaN}', "JSON"),
        ("settings", '{"a":1e999}', "JSON"),
        ("settings", '{"a":"ü"}', "canonical"),
        ("settings", '{"a":' + "1" * 5000 + "}", "JSON"),
        ("settings", '{"a":"' + "x" * 65_536 + '"}', "the most"),
        ("classes", ["one"], "2 to 10,000"),
        ("classes", ["one", "one"], "twice"),
        ("classes", ["one", "t\nwo"], "not printable"),
        ("classes", ["one", ""], "empty"),
        ("shape", [], "1 or 3"),
        ("shape", [2, 2], "1 or 3"),
        ("shape", [0], "no entry"),
        ("shape", [2**32 - 1] * 3, "2^24"),
        ("backbone_sha256", b"short", "SHA-256"),
    ],
)
def test_requests_that_cannot_be_are_refused(field: str, value: Any, complaint: str) -> None:
    message = request_pb2.ReleaseRequest.FromString(REQUEST.encode())
    message.ClearField(field)
    if isinstance(value, list):
        getattr(message, field).extend(value)
    else:
        setattr(message, field, value)
    with pytest.raises(WireError) as caught:
        decode_request(message.SerializeToString(deterministic=True))
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < 300 and str(caught.value).isprintable()


# Releases


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(names, arrays, max_size=3),
    names,
    st.floats(0, 1e6) | st.just(math.inf),
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.text(max_size=100).filter(str.isprintable),
)
def test_releases_come_back(arrays: dict[str, Any], silo: str, epsilon: float, entry: str, software: str) -> None:
    sent = release_of(
        privatised().post_process(lambda _: arrays),
        REQUEST,
        silo=silo,
        guarantee=Guarantee(epsilon, 1e-5, "Rényi"),
        ledger_entry=entry,
        software=software,
    )
    back = decode_release(sent.encode())
    assert same_arrays(back.arrays, sent.arrays)
    assert all(not array.flags.writeable for array in back.arrays.values())
    for field in dataclasses.fields(Release):
        if field.name != "arrays":
            assert getattr(back, field.name) == getattr(sent, field.name)
    assert back.request_id == REQUEST.id and back.method == REQUEST.method and back.kind is REQUEST.kind
    assert back.encode() == sent.encode()


def test_releases_keep_whether_they_protect_anybody() -> None:
    assert not decode_release(release().encode()).releasable
    total = ClippedSum(Layout((class_segment("x", 1, 1),)))
    real = privatise(total, Gaussian(4.0), SystemEntropy())
    sent = release_of(real, REQUEST, silo="a", guarantee=Guarantee(1, 1e-5, "x"), ledger_entry="00" * 32, software="s")
    assert decode_release(sent.encode()).releasable


def test_a_release_cannot_be_built_from_arrays() -> None:
    real = release()
    fields = {field.name: getattr(real, field.name) for field in dataclasses.fields(Release)}
    for extra in ({}, {"_made_by": None}, {"_made_by": object()}):
        with pytest.raises(TypeError, match="cannot be built from arrays"):
            Release(**fields, **extra)
    for change in ({"arrays": {"x": np.zeros(3)}}, {"event": Gaussian(1e9)}, {"releasable": True}, {}):
        with pytest.raises(TypeError, match="cannot be built from arrays"):
            dataclasses.replace(real, **change)
    with pytest.raises(dataclasses.FrozenInstanceError):
        real.releasable = True  # type: ignore[misc]
    with pytest.raises((TypeError, AttributeError)):
        release_of({"x": np.zeros(3)}, REQUEST, silo="a", guarantee=real.guarantee, ledger_entry="", software="")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "field, value",
    [
        ("request_id", b""),
        ("request_id", bytes(31)),
        ("ledger_entry", bytes(33)),
        ("silo", "no spaces"),
        ("method", ""),
        ("kind", 0),
        ("distance", -1e-9),
        ("distance", 1.1),
        ("distance", math.nan),
        ("software", "a\x1b[31m"),
        ("software", "a" * 101),
    ],
)
def test_releases_that_cannot_be_are_refused(field: str, value: Any) -> None:
    message = release_pb2.Release.FromString(release().encode())
    setattr(message, field, value)
    with pytest.raises(WireError) as caught:
        decode_release(message.SerializeToString())
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("field", ["event", "guarantee"])
def test_a_release_must_say_what_it_cost(field: str) -> None:
    message = release_pb2.Release.FromString(release().encode())
    message.ClearField(field)
    with pytest.raises(WireError):
        decode_release(message.SerializeToString())


# Signatures


def test_a_signed_release_opens() -> None:
    signed = sign(release(), KEY)
    assert signer_of(signed) == KEY.public_key().public_bytes_raw()
    for trusted in (None, KEY.public_key().public_bytes_raw()):
        assert open_signed(signed, trusted).silo == "north"


def test_any_altered_byte_breaks_the_signature() -> None:
    signed = sign(release(), KEY)
    trusted = KEY.public_key().public_bytes_raw()
    for position in range(len(signed)):
        for flip in (0x01, 0x80, 0xFF):
            altered = bytearray(signed)
            altered[position] ^= flip
            with pytest.raises((WireError, IntegrityError)):
                open_signed(bytes(altered), trusted)
            with pytest.raises((WireError, IntegrityError)):
                open_signed(bytes(altered))
    for cut in range(len(signed)):
        with pytest.raises((WireError, IntegrityError)):
            open_signed(signed[:cut], trusted)


def test_another_key_is_not_trusted() -> None:
    other = Ed25519PrivateKey.generate()
    with pytest.raises(IntegrityError, match="another key"):
        open_signed(sign(release(), other), KEY.public_key().public_bytes_raw())
    forged = release_pb2.SignedRelease.FromString(sign(release(), other))
    forged.public_key = KEY.public_key().public_bytes_raw()
    with pytest.raises(IntegrityError, match="does not match"):
        open_signed(forged.SerializeToString(), KEY.public_key().public_bytes_raw())


def test_a_signature_over_something_else_does_not_count() -> None:
    payload = release().encode()
    digest = hashlib.sha256(release_pb2.SignedRelease(release=payload).SerializeToString()).digest()
    for signed_bytes in (digest, b"dpdd ledger v1\0" + digest, b"dpdd release v1\0" + digest + b"\0"):
        message = release_pb2.SignedRelease(
            release=payload, signature=KEY.sign(signed_bytes), public_key=KEY.public_key().public_bytes_raw()
        )
        with pytest.raises(IntegrityError):
            open_signed(message.SerializeToString())


def test_a_release_is_checked_even_if_its_signature_holds() -> None:
    payload = b"\xff\xff"
    message = release_pb2.SignedRelease(
        release=payload,
        signature=KEY.sign(b"dpdd release v1\0" + hashlib.sha256(b"\x0a\x02" + payload).digest()),
        public_key=KEY.public_key().public_bytes_raw(),
    )
    with pytest.raises(WireError):
        open_signed(message.SerializeToString())


# Answers


@settings(deadline=None)
@given(refusals)
def test_refusals_come_back(refusal: Refusal) -> None:
    assert decode_answer(encode_answer(refusal)) == refusal
    if refusal.shortfall is not None:
        shortfall = refusal.shortfall
        assert shortfall.difference == shortfall.requested - shortfall.remaining


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_signed_releases_travel_as_they_are(data: bytes) -> None:
    answer = SignedReleaseBytes(data)
    assert decode_answer(encode_answer(answer)) == answer


@pytest.mark.parametrize(
    "field, value",
    [
        ("request_id", b"x"),
        ("silo", ""),
        ("reason", 0),
        ("reason", 99),
        ("message", "two\nlines"),
        ("message", "x" * 1001),
    ],
)
def test_refusals_that_cannot_be_are_refused(field: str, value: Any) -> None:
    good = encode_answer(Refusal("00" * 32, "north", Reason.DENIED, "no", Shortfall(2.0, 1.0)))
    message = refusal_pb2.Answer.FromString(good)
    setattr(message.refusal, field, value)
    with pytest.raises(WireError) as caught:
        decode_answer(message.SerializeToString())
    assert str(caught.value).isprintable()


def test_an_answer_says_one_of_two_things() -> None:
    with pytest.raises(WireError, match="neither"):
        decode_answer(b"")
    bad = refusal_pb2.Answer(
        refusal=refusal_pb2.Refusal(request_id=bytes(32), silo="a", reason=1, shortfall={"requested": math.nan})
    )
    with pytest.raises(WireError, match="no number"):
        decode_answer(bad.SerializeToString())


def test_every_reason_on_the_wire_has_a_name() -> None:
    numbers = set(refusal_pb2.Reason.values()) - {refusal_pb2.REASON_UNSPECIFIED}
    assert {reason.value for reason in Reason} == numbers
    assert {kind.value for kind in Kind} == set(request_pb2.Kind.values()) - {request_pb2.KIND_UNSPECIFIED}


# Arrays, events and guarantees


@settings(deadline=None)
@given(arrays)
def test_arrays_come_back(array: Any) -> None:
    assert same_arrays(from_wire([to_wire("x", array)]), {"x": array})


@pytest.mark.parametrize("dtype", ["?", "<c16", "U3", "<u8", "<f2"])
def test_arrays_of_other_types_do_not_travel(dtype: str) -> None:
    with pytest.raises(TypeError, match="do not travel"):
        to_wire("x", np.zeros(2, dtype=dtype))


@pytest.mark.parametrize(
    "message, complaint",
    [
        (array_pb2.Array(name="", dtype=1), "not a name"),
        (array_pb2.Array(name="x", dtype=0), "unknown dtype"),
        (array_pb2.Array(name="x", dtype=99), "unknown dtype"),
        (array_pb2.Array(name="x", dtype=1, shape=[2], data=bytes(15)), "announces 16 bytes"),
        (array_pb2.Array(name="x", dtype=1, shape=[2], data=bytes(17)), "announces 16 bytes"),
        (array_pb2.Array(name="x", dtype=1, shape=[1] * 9, data=bytes(8)), "8 is the most"),
        (array_pb2.Array(name="x", dtype=4, shape=[2**32 - 1] * 8), "announces"),
        (array_pb2.Array(name="x", dtype=1, shape=[0] + [2**32 - 1] * 3), "impossible shape"),
    ],
)
def test_arrays_that_cannot_be_are_refused(message: array_pb2.Array, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        from_wire([message])


def test_two_arrays_of_one_name_are_refused() -> None:
    with pytest.raises(WireError, match="two arrays"):
        from_wire([to_wire("x", np.zeros(1)), to_wire("x", np.zeros(1))])


@settings(deadline=None)
@given(events)
def test_events_come_back(event: Event) -> None:
    assert event_from_wire(event_to_wire(event)) == event


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [{}],
        [{"gaussian": {"sigma": 0.0, "releases": 1}}],
        [{"gaussian": {"sigma": math.nan, "releases": 1}}],
        [{"gaussian": {"sigma": 1e300, "releases": 1}}],
        [{"gaussian": {"sigma": 1e-300, "releases": 1}}],
        [{"gaussian": {"sigma": 1.0, "releases": 0}}],
        [{"gaussian": {"sigma": 1.0, "releases": 2**31}}],
        [{"gaussian": {"sigma": 1.0, "releases": 2**31 - 1}}] * 2,  # each may be; merged they may not
        [{"poisson_gaussian": {"sigma": 1.0, "rate": 0.0, "steps": 1}}],
        [{"poisson_gaussian": {"sigma": 1.0, "rate": 1.1, "steps": 1}}],
        [{"poisson_gaussian": {"sigma": 1.0, "rate": 0.5, "steps": 0}}],
    ],
)
def test_events_that_cannot_be_are_refused(parts: list[dict[str, Any]]) -> None:
    with pytest.raises(WireError, match="privacy event"):
        event_from_wire(privacy_pb2.Event(parts=[privacy_pb2.EventPart(**part) for part in parts]))


@pytest.mark.parametrize(
    "field, value",
    [
        ("epsilon", -0.1),
        ("epsilon", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", math.nan),
        ("neighbours", "replace one"),
        ("accountant", "x" * 101),
        ("accountant", "two\nlines"),
    ],
)
def test_guarantees_that_cannot_be_are_refused(field: str, value: Any) -> None:
    good = guarantee_to_wire(Guarantee(1.0, 1e-5, "Rényi"))
    assert guarantee_from_wire(good) == Guarantee(1.0, 1e-5, "Rényi")
    setattr(good, field, value)
    with pytest.raises(WireError, match="a guarantee"):
        guarantee_from_wire(good)


# Tables

SICK = {"name": "sick", "type": "categorical", "categories": ["no", "yes"]}
AGE = {"name": "age", "type": "numeric", "low": 0, "high": 100, "bins": 10, "missing": True}
TABLE = TableSchema.model_validate({"label": "sick", "columns": [AGE, SICK]})
OF_A_TABLE = dataclasses.replace(REQUEST, table=TABLE, classes=("no", "yes"), shape=(1,))


def test_requests_about_images_have_the_ids_that_they_always_had() -> None:
    assert REQUEST.id == "a630886921cb2f056f96e127df4a1ce9f1b3f1e77c0f9daee8a71c375cfbfb33"


def test_a_request_about_a_table_comes_back_with_its_schema() -> None:
    back = decode_request(OF_A_TABLE.encode())
    assert back == OF_A_TABLE and back.table == TABLE and back.id == OF_A_TABLE.id != REQUEST.id
    assert back.first_stage().table == TABLE


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"classes": ("no", "maybe")}, "not its table's"),
        ({"classes": ("yes", "no")}, "not its table's"),
        ({"shape": (2,)}, "not its table's"),
        ({"shape": (1, 8, 8)}, "not its table's"),
    ],
)
def test_a_request_contradicting_its_table_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode_request(dataclasses.replace(OF_A_TABLE, **changes).encode())


@pytest.mark.parametrize(
    "text", ["{}", "no json", '{"kind":"table"}', TABLE.text + " ", TABLE.text.replace("100.0", "100"), "[" * 10_000]
)
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    message = request_pb2.ReleaseRequest.FromString(OF_A_TABLE.encode())
    message.table = text
    with pytest.raises(WireError, match="a table's schema cannot be read"):
        decode_request(message.SerializeToString(deterministic=True))
