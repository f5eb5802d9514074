"""More decoders: of a worker's answers, of a coordinator's word, of what a silo keeps, and of what is published."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message
from numpy.typing import NDArray

from dpdd.client.anchor import Anchor
from dpdd.client.coordinator_memory import CoordinatorMemory
from dpdd.client.ledger.position import Position
from dpdd.client.transport.stored_releases import StoredReleases
from dpdd.client.worker import endings, frames
from dpdd.client.worker import worker as workers
from dpdd.client.worker.limits import Limits
from dpdd.client.worker.plan_json import plan_to_json
from dpdd.client.worker.worker import Worker
from dpdd.common.data.formats import load as load_data
from dpdd.common.errors import ConfigError, DataError, DpddError, IntegrityError, LedgerError, WireError
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.methods.verification import expected_of
from dpdd.common.models import backbone
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.progress import silent
from dpdd.common.synthesis.distilled_set import DistilledSet, from_arrays, to_arrays
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product import ReleasedModel
from dpdd.common.synthesis.public_pool import LabelledPool, PoolFacts, PoolLabels
from dpdd.common.synthesis.table_teacher import TableTeacher
from dpdd.common.synthesis.teacher import Teacher
from dpdd.common.wire import arrays
from dpdd.common.wire.parsing import parse
from dpdd.common.wire.release import decode_release
from dpdd.common.wire.request import Kind
from dpdd.v1 import exchange_pb2, release_pb2, transfer_pb2
from tests.attacks.fuzz_target import Maker, Target
from tests.attacks.mutations import any_value, as_json, changed, damaged, filled, one_part_replaced
from tests.client.silos import make_request
from tests.common.data.formats.tables import sources
from tests.common.wire.test_fuzz import DECODERS
from tests.methods.cases import all_cases
from tests.server.finished_runs import images, table

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_LIMITS = Limits(60.0, 1 << 29)


def more_targets(folder: Path) -> Iterator[Target]:
    """All of them; `folder` takes the files that decoders read."""
    yield from _of_workers()
    yield from _of_coordinators()
    yield from _of_requests()
    yield from _of_state(folder)
    yield from _of_products(folder)
    yield from _of_tables(folder)


# What a worker says


class _SaysThat(Worker):
    """A worker whose answer is known."""

    def __init__(self, said: bytes) -> None:
        super().__init__()
        self._said = said

    def run(self, *_: Any, **__: Any) -> bytes:
        return self._said


def _of_workers() -> Iterator[Target]:
    error = {"error": "DataError", "text": "no", "where": ""}
    said = [
        frames.frame(frames.Kind.PROGRESS, json.dumps(["reading", 1, 2]).encode()),
        frames.frame(frames.Kind.RESULT, DECODERS["release"][1]),
        frames.frame(frames.Kind.ERROR, json.dumps(error).encode()),
    ]

    def heard(data: bytes) -> None:
        channels, controls = socket.socketpair(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with channels[0], channels[1], controls[0], controls[1]:
            channels[1].sendall(data[: 1 << 15])  # fits into the socket, so nobody has to read meanwhile
            channels[1].close()
            controls[1].send(b"{}")
            kind, payload, _ = workers._listen(channels[0], controls[0], silent, 1 << 14)
        if kind is frames.Kind.RESULT:
            decode_release(payload)
        if kind is frames.Kind.ERROR:
            raise endings.error_of(payload, _LIMITS)

    def frames_of(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            kind = rng.choice(list(frames.Kind))
            value = changed(rng, error) if rng.random() < 0.5 else any_value(rng)
            return said[0] + frames.frame(kind, as_json(changed(rng, ["reading", 1, 2]) if kind == 2 else value))
        return damaged(rng, b"".join(rng.sample(said, rng.randint(1, 3))), rng.choice(said))

    yield Target("worker's messages", frames_of, heard, (DpddError, WireError))
    request = make_request()
    plan = {"plan": plan_to_json(plan_of(request)), "memory": 1 << 28}

    def planned(data: bytes) -> None:
        with contextlib.suppress(ConfigError):  # the worker says that the request is malformed
            _SaysThat(data).plan(request, _LIMITS)

    yield Target("worker's plan", _json_maker(plan), planned, (IntegrityError,))
    yield Target(
        "worker's figures",
        _json_maker([0.5, 2.0]),
        lambda data: _SaysThat(data).measure(request, plan_of(request), _LIMITS),
        (IntegrityError,),
    )


def _json_maker(value: Any) -> Maker:
    def make(rng: random.Random) -> bytes:
        valid = as_json(value)
        if rng.random() < 0.3:
            return damaged(rng, valid, valid)
        return as_json(changed(rng, value) if rng.random() < 0.9 else any_value(rng))

    return make


# What a coordinator says


class _Replies:
    """A channel to a coordinator that has one answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._given = False

    def unary_unary(self, _name: str) -> Callable[..., bytes]:
        def reply(_request: bytes, timeout: float) -> bytes:
            data, self._data = self._data, b""  # the next page is empty
            return data

        return reply


def _of_coordinators() -> Iterator[Target]:
    position = exchange_pb2.LedgerPosition(sequence=7, entry=bytes(32))
    manifests = [transfer_pb2.Manifest(sha256=bytes([each]) * 32, size=9, request_id=bytes(32)) for each in (1, 2)]
    page = exchange_pb2.StoredReleases(releases=manifests)

    def asked(ask: Callable[[StoredReleases], Any]) -> Callable[[bytes], Any]:
        return lambda data: ask(StoredReleases(_Replies(data)))  # type: ignore[arg-type]

    yield Target("ledger position", _message_maker(position), asked(lambda source: source.position()), (WireError,))
    yield Target("stored releases", _message_maker(page), asked(lambda source: list(source.stored())), (WireError,))


def _message_maker(valid: Message) -> Maker:
    data, kind = valid.SerializeToString(), type(valid)

    def make(rng: random.Random) -> bytes:
        match rng.randrange(4):
            case 0:
                return filled(rng, kind).SerializeToString(deterministic=True)
            case 1:
                return damaged(rng, data, data)
        return one_part_replaced(rng, data, kind)

    return make


# Requests, as far as their plans


def _of_requests() -> Iterator[Target]:
    """Every method's, with settings that its schema may or may not know; what draws samples takes long to account."""
    cases = [case for case in all_cases() if case.private and not case.method.startswith(("dosser", "ndpdc", "psg"))]
    requests = [case.request(1.0) for case in cases]

    def make(rng: random.Random) -> bytes:
        request = rng.choice(requests)
        values: Any = changed(rng, json.loads(json.dumps(dict(request.settings))))
        try:
            made = replace(
                request,
                settings=values if isinstance(values, dict) else {"features": values},
                epsilon=rng.choice((1.0, 1e-9, 32.0, 1e-300, request.epsilon)),
                stage=rng.choice((0, 0, 0, 1, 2**31 - 1)),
                kind=rng.choice((request.kind, request.kind, *Kind)),
                shape=rng.choice((request.shape, request.shape, (1, 1, 1), (1 << 24,), (3, 2000, 2000))),
            )
            return made.encode()
        except (WireError, ValueError, TypeError, RecursionError):
            return request.encode()

    def planned(data: bytes) -> None:
        expected_of(DECODERS["request"][0](data))

    yield Target("planned request", make, planned, (ConfigError, WireError))


# What a silo keeps


class _Ends:
    """A ledger that holds nothing."""

    def position(self) -> Position:
        return Position(3, "00" * 32)

    def holds(self, known: Position) -> bool:
        return False


def _of_state(folder: Path) -> Iterator[Target]:
    path = folder / "north.anchor"
    anchor = Anchor(path, _KEY)
    anchor.follow(_Ends())
    anchored = json.loads(path.read_bytes())

    def from_file(place: Path, read: Callable[[], Any]) -> Callable[[bytes], Any]:
        def decode(data: bytes) -> None:
            place.write_bytes(data)
            read()

        return decode

    yield Target("anchor", _json_maker(anchored), from_file(path, anchor.read), (IntegrityError,))
    memory = CoordinatorMemory(folder / "position.json")
    known = {"sequence": 7, "entry": "00" * 32, "reservations": 0}

    def judged() -> None:
        memory.check(_Ends())
        memory.check_claim(_Ends())

    told = _json_maker({"shown": known, "claimed": known})
    yield Target("coordinator's word", told, from_file(folder / "position.json", judged), (IntegrityError, LedgerError))


# What is sent and published


def _of_products(folder: Path) -> Iterator[Target]:
    for name, product in (("distilled images", images(side=8)), ("distilled rows", table(soft=True))):
        counts = np.array([3.0, 2.0], np.float32)
        sent = to_arrays(DistilledSet(product, counts))
        valid = release_pb2.Release(arrays=[arrays.to_wire(key, each) for key, each in sent.items()])
        yield Target(name, _message_maker(valid), _set_of(product), (IntegrityError, WireError))
    for name, make, read in (
        ("dataset", images(), LabelledSet.load),
        ("dataset of rows", table(soft=True), LabelledSet.load),
        ("teacher", images(teacher=True), Teacher.load),
        ("table's teacher", table(teacher=True), TableTeacher.load),
    ):
        place = folder / name
        make.save(place)
        path = place / ("teacher.safetensors" if name.endswith("teacher") else "dataset.safetensors")
        yield Target(name, _tensors_maker(path.read_bytes()), _file_decoder(path, read), (DataError,))
    pixels, place = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), np.uint8), folder / "pool"
    sure = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    LabelledPool.of(pixels, sure, PoolFacts("noise", "none", ("cat", "dog"), (1, 8, 8))).labels.save(place)
    path = place / "pool.safetensors"
    yield Target("public pool", _tensors_maker(path.read_bytes()), _file_decoder(path, _joined(pixels)), (DataError,))
    yield from _of_networks(folder)


def _joined(pixels: NDArray[np.uint8]) -> Callable[[Path], object]:
    return lambda place: PoolLabels.load(place).join(pixels).pool.labels.soft


def _of_networks(folder: Path) -> Iterator[Target]:
    """A backbone is a card and weights whose header says the same; whoever publishes one writes both."""
    own = folder / "own"
    files = own.with_suffix(".safetensors"), own.with_suffix(".json")
    architecture = ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(6, 8), pool_after=(1,))
    backbone.save(own, backbone.build(architecture), backbone.Provenance("noise", "none needed", 0.0, "none", 0))
    weights, card = files[0].read_bytes(), json.loads(files[1].read_text())
    scattering = json.loads(backbone.shipped_weights().joinpath("scatter28.json").read_text())
    rest = weights[8 + int.from_bytes(weights[:8], "little") :]
    header = json.loads(weights[8 : len(weights) - len(rest)])

    def load(data: bytes) -> None:
        files[1].write_bytes(data)
        about = {}
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            about = json.loads(data)
            consistent = {name: about[name] for name in ("architecture", "normalisation")}
            text = json.dumps(consistent, sort_keys=True, separators=(",", ":"))
            head = json.dumps({**header, "__metadata__": {"dpdd": text}}).encode()
            made = len(head).to_bytes(8, "little") + head + rest
            files[0].write_bytes(made)
            files[1].write_text(json.dumps({**about, "sha256": hashlib.sha256(made).hexdigest()}))
        backbone.load(own)

    def make(rng: random.Random) -> bytes:
        parts = {**card, "architecture": scattering["architecture"]} if rng.random() < 0.3 else card
        if rng.random() < 0.6:
            return as_json({**parts, "architecture": changed(rng, parts["architecture"])})
        return as_json(changed(rng, parts))

    yield Target("backbone", make, load, (IntegrityError, ConfigError, DataError))

    def load_weights(data: bytes) -> None:
        files[0].write_bytes(data)
        files[1].write_text(json.dumps({**card, "sha256": hashlib.sha256(data).hexdigest()}))
        backbone.load(own)

    yield Target("backbone's weights", _tensors_maker(weights), load_weights, (IntegrityError, ConfigError, DataError))
    model = folder / "model"
    ReleasedModel.of(EvaluationConvNet((1, 8, 8), 2, 4), ("cat", "dog"), (1, 8, 8), 4).save(model)
    path = model / "model.safetensors"
    yield Target("model", _tensors_maker(path.read_bytes()), _file_decoder(path, ReleasedModel.load), (DataError,))


def _set_of(product: LabelledSet) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> DistilledSet:
        given = arrays.from_wire(parse(release_pb2.Release, data).arrays)
        shape = product.records.shape[1:]
        return from_arrays(given, product.classes, shape, 4, "north", None, product.schema)

    return decode


def _file_decoder(path: Path, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        path.write_bytes(data)
        return read(path.parent)

    return decode


def _tensors_maker(valid: bytes) -> Maker:
    """A safetensors file: damaged anywhere, or with another header of the right length."""
    length = int.from_bytes(valid[:8], "little")
    header = json.loads(valid[8 : 8 + length])

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return damaged(rng, valid[: 8 + length], valid[:200]) + valid[8 + length :]
        other = changed(rng, header) if rng.random() < 0.4 else dict(header)
        if isinstance(other, dict) and isinstance(about := other.get("__metadata__"), dict) and "dpdd" in about:
            inside: Any = changed(rng, json.loads(header["__metadata__"]["dpdd"]))
            other = {**other, "__metadata__": {"dpdd": as_json(inside).decode()}}
        text = as_json(other)
        return len(text).to_bytes(8, "little") + text + valid[8 + length :]

    return make


# Tables


def _of_tables(folder: Path) -> Iterator[Target]:
    import pyarrow as pa
    from pyarrow import parquet

    csv = sources.as_csv(sources.RECORDS).encode()
    columns = {name: [str(row[place]) for row in sources.RECORDS] for place, name in enumerate(sources.NAMES)}
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)

    def reading(form: str) -> Callable[[bytes], Any]:
        spec = sources.spec(form)
        path = folder / str(spec.path)

        def decode(data: bytes) -> Any:
            path.write_bytes(data)
            return np.asarray(load_data(spec, folder).features[0:4])

        return decode

    for form, valid in (("csv", csv), ("parquet", buffer.getvalue())):
        yield Target(f"table, {form}", lambda rng, valid=valid: damaged(rng, valid, valid), reading(form), (DataError,))  # type: ignore[misc]
