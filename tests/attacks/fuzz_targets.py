"""Every decoder of what comes from outside, with what makes inputs for it from real objects."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import sqlite3
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message

from dpdd.client.config import load_settings
from dpdd.client.ledger import hash_chain
from dpdd.client.ledger.ledger import Ledger
from dpdd.common.data.formats import DataSpec
from dpdd.common.data.formats import load as load_data
from dpdd.common.data.table.schema import table_schema
from dpdd.common.errors import ConfigError, DataError, IntegrityError, LedgerError, WireError
from dpdd.common.files import idx, npz
from dpdd.common.privacy import events
from dpdd.common.privacy.accounting import Guarantee, calibrate, gaussian_releases
from dpdd.common.privacy.filters import Budget, Spending
from dpdd.common.wire import arrays
from dpdd.common.wire.exchange import Manifest, Token, open_request, read_part, sign_request
from dpdd.common.wire.parsing import parse
from dpdd.common.wire.request_keys import Trusted, decode_chain, encode_chain, endorse
from dpdd.server.commands.publishing import verify
from dpdd.server.run.scenario import load_scenario, shipped
from dpdd.v1 import array_pb2, exchange_pb2, plan_pb2, refusal_pb2, release_pb2, request_pb2, transfer_pb2
from tests.attacks.fuzz_more_targets import more_targets
from tests.attacks.fuzz_target import Target
from tests.attacks.mutations import any_value, as_json, as_toml, changed, damaged, filled, one_part_replaced
from tests.client.silos import make_request
from tests.common.wire.test_fuzz import DECODERS
from tests.server.finished_runs import finished_run, table

Errors = tuple[type[Exception], ...]
_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_PUBLIC = _KEY.public_key().public_bytes_raw()
_BUDGET = Budget(1.0, 1e-5)
_TIME = "2026-01-01T00:00:00.000+00:00"


def targets(folder: Path) -> list[Target]:
    """All of them; `folder` takes the files that decoders read."""
    folder.mkdir(parents=True, exist_ok=True)
    more = folder / "more"
    more.mkdir()
    first = [*_messages(), *_ledgers(folder), *_configurations(folder), *_cards(folder), *_data(folder)]
    return [*first, *more_targets(more)]


# Messages


def _messages() -> Iterator[Target]:
    kinds: dict[str, type[Message]] = {
        "request": request_pb2.ReleaseRequest,
        "release": release_pb2.Release,
        "signed release": release_pb2.SignedRelease,
        "signer": release_pb2.SignedRelease,
        "refusal": refusal_pb2.Answer,
        "answer": refusal_pb2.Answer,
        "report": plan_pb2.PlanReport,
        "manifest": transfer_pb2.Manifest,
        "upload": exchange_pb2.UploadPart,
        "join": exchange_pb2.JoinRequest,
    }
    envelope = sign_request(DECODERS["request"][1], _KEY, bytes(16))
    token = str(Token(bytes(24), bytes(32))).encode()
    chain = encode_chain([endorse(_KEY, bytes(32), number=1, authority_sha256=bytes(32))])
    array = arrays.to_wire("x", np.arange(6.0).reshape(2, 3)).SerializeToString()

    def whole_manifest(data: bytes) -> Manifest:
        return Manifest.from_wire(parse(transfer_pb2.Manifest, data))

    def followed(data: bytes) -> Any:
        return Trusted(_PUBLIC).follow(decode_chain(data), bytes(32))

    def one_array(data: bytes) -> Any:
        return arrays.from_wire([parse(array_pb2.Array, data)])

    decoders: dict[str, tuple[Callable[[bytes], Any], bytes, type[Message] | None]] = {
        **{name: (decode, valid, kinds[name]) for name, (decode, valid) in DECODERS.items()},
        "manifest": (whole_manifest, DECODERS["manifest"][1], kinds["manifest"]),
        "part of an upload": (read_part, DECODERS["upload"][1], kinds["upload"]),
        "envelope": (lambda data: open_request(data, _PUBLIC), envelope, exchange_pb2.RequestEnvelope),
        "request keys": (followed, chain, exchange_pb2.RequestKeyChain),
        "array": (one_array, array, array_pb2.Array),
        "join token": (lambda data: Token.parse(data.decode("latin-1")), token, None),
    }
    corpus = [valid for _, valid, _ in decoders.values()]
    for name, (decode, valid, kind) in decoders.items():
        yield Target(name, _message_maker(valid, kind, corpus), decode, (WireError, IntegrityError))


def _message_maker(valid: bytes, kind: type[Message] | None, corpus: list[bytes]) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        way = rng.randrange(20)
        if kind is not None and way < 8:
            return one_part_replaced(rng, valid, kind)
        if kind is not None and way < 10:
            return filled(rng, kind).SerializeToString(deterministic=True)
        if way == 10:
            return rng.randbytes(rng.randint(0, 300))
        return damaged(rng, valid, rng.choice(corpus))

    return make


# Ledgers


def _ledgers(folder: Path) -> Iterator[Target]:
    path, trial = folder / "ledger.sqlite", folder / "damaged.sqlite"
    Ledger.create(path, "north", _BUDGET, _KEY)
    spending = Spending(events.Gaussian(calibrate(gaussian_releases(4), 1.0, 1e-5)), 1e-12)
    ledger = Ledger(path, "north", _BUDGET, _KEY)
    promised = Guarantee(0.5, 1e-5, "test")
    ledger.reserve("1" * 64, "dp-merf", spending, promised, {"run": "r"}, stages=2)
    ledger.begin_stage("2" * 64, "1" * 64, 1, spending)
    ledger.commit("1" * 64, "3" * 64)
    ledger.note("approve", "4" * 64, {"by": "somebody"})
    entries = list[hash_chain.Entry]()
    for entry in ledger.entries():  # again with fixed times, so that the same seed makes the same inputs
        last = entries[-1] if entries else None
        entries.append(hash_chain.next_entry(last, _TIME, entry.kind, entry.request_id, entry.body, _KEY))
    ledger.close()
    with sqlite3.connect(path) as db:
        schema = ";".join(row[0] for row in db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL"))
    db.close()

    def cells(entry: hash_chain.Entry, body: str) -> list[Any]:
        head = [entry.seq, entry.time, entry.kind, entry.request_id, body]
        return [*head, entry.previous, entry.hash, entry.signature.hex()]

    def write(to: Path, rows: Iterable[list[Any]]) -> None:
        to.unlink(missing_ok=True)
        with sqlite3.connect(to, isolation_level=None) as db:
            db.execute("PRAGMA synchronous = OFF")
            db.executescript("BEGIN;" + schema)
            with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError, sqlite3.Error):
                for row in rows:  # as far as such rows can be in a ledger's table
                    text = [*row[:7], bytes.fromhex(row[7])]
                    db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", text)
            db.execute("COMMIT")
        db.close()

    write(path, [cells(entry, hash_chain.canonical(entry.body)) for entry in entries])
    valid = path.read_bytes()

    def opened(_: bytes = b"") -> None:
        ledger = Ledger(trial, "north", _BUDGET, _KEY)
        try:
            ledger.check_budget()
            ledger.status()
            ledger.judge("5" * 64, spending)
            ledger.check_holdout({})
            ledger.committed("1" * 64)
        finally:
            ledger.close()

    def from_bytes(data: bytes) -> None:
        trial.write_bytes(data)
        trial.with_name(trial.name + "-journal").unlink(missing_ok=True)
        opened()

    def from_rows(data: bytes) -> None:
        rows = json.loads(data)
        write(trial, rows if isinstance(rows, list) else [])
        opened()

    def rows(rng: random.Random) -> bytes:
        signed = rng.random() < 0.5
        made, last = [], None
        for entry in entries:
            body = changed(rng, entry.body) if rng.random() < 0.4 else entry.body
            if signed and isinstance(body, dict):
                entry = hash_chain.next_entry(last, entry.time, entry.kind, entry.request_id, body, _KEY)
            last = entry
            made.append(cells(entry, as_json(body).decode()))
        return json.dumps(made if signed else changed(rng, made)).encode()

    errors: Errors = (LedgerError,)
    yield Target("ledger, bytes", lambda rng: damaged(rng, valid, valid), from_bytes, errors)
    yield Target("ledger, entries", rows, from_rows, errors)
    event = events.to_json(events.compose(events.Gaussian(3.0), events.PoissonGaussian(2.0, 0.1, 5)))
    yield Target(
        "privacy events",
        lambda rng: json.dumps([changed(rng, row) for row in event] if rng.random() < 0.9 else any_value(rng)).encode(),
        lambda data: events.from_json(json.loads(data)),
        (ValueError,),
    )


# Settings and cards

_SILO = """
name = "north"
[data]
format = "npz"
path = "records.npz"
classes = ["ant", "bee", "cat"]
shape = [1, 8, 8]
value_range = [0, 255]
[budget]
epsilon = 1.0
delta = 1e-5
[policy]
methods = ["dp-merf"]
epsilon_per_request = 2.0
public_counts = {ant = 1, bee = 2, cat = 3}
[simulation]
noise_seed = 3
[coordinator]
address = "localhost:7443"
authority_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
request_key = "1111111111111111111111111111111111111111111111111111111111111111"
"""
_TABLE: dict[str, Any] = {
    "kind": "table",
    "label": "ward",
    "columns": [
        {"name": "age", "type": "numeric", "low": 0, "high": 100, "bins": 10, "integer": True},
        {"name": "ward", "type": "categorical", "categories": ["heart", "lung"]},
    ],
}


def _toml_maker(files: list[bytes]) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        text = rng.choice(files)
        if rng.random() < 0.4:
            return damaged(rng, text, rng.choice(files))
        value = changed(rng, tomllib.loads(text.decode()))
        return as_toml(value if isinstance(value, dict) else {"name": value})

    return make


def _configurations(folder: Path) -> Iterator[Target]:
    silo, scenario = folder / "silo", folder / "scenario.toml"
    silo.mkdir()

    def load_silo(data: bytes) -> Any:
        (silo / "silo.toml").write_bytes(data)
        return load_settings(silo)

    def load_run(data: bytes) -> Any:
        scenario.write_bytes(data)
        return load_scenario(str(scenario))

    yield Target("silo.toml", _toml_maker([_SILO.encode()]), load_silo, (ConfigError,))
    files = [path.read_bytes() for path in shipped().values()]
    yield Target("scenario", _toml_maker(files), load_run, (ConfigError,))
    yield Target(
        "table's schema",
        lambda rng: json.dumps(changed(rng, _TABLE)).encode(),
        lambda data: table_schema(json.loads(data), "silo.toml"),
        (ConfigError,),
    )


def _cards(folder: Path) -> Iterator[Target]:
    run = folder / "run"
    card = finished_run(run, table())
    shutil.rmtree(run / "silos")
    valid = as_json(card)

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return damaged(rng, valid, valid)
        if rng.random() < 0.5:  # one row, so that more of the changes meet what is checked
            value = {**card, "silos": [changed(rng, row) if rng.random() < 0.6 else row for row in card["silos"]]}
            if rng.random() < 0.5:
                rows = [{**row, "together": {"epsilon": 1.0, "delta": 1e-5}} for row in card["silos"]]
                value["evaluation_at_silos"] = changed(rng, rows)
            return as_json(value)
        return as_json(changed(rng, card) if rng.random() < 0.9 else any_value(rng))

    def decode(data: bytes) -> None:
        (run / "card.json").write_bytes(data)
        with contextlib.redirect_stdout(io.StringIO()):
            verify(argparse.Namespace(folder=run, thorough=False, pool=None))

    yield Target("card", make, decode, (DataError, IntegrityError, WireError))


# Data


def _data(folder: Path) -> Iterator[Target]:
    path = folder / "records"
    images = np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8)
    labels = np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8)
    made: dict[str, list[bytes]] = {"npz": [], "idx images": [], "idx labels": [], "csv": []}
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, images=images[:, None], labels=labels.astype(np.int64))
        made["npz"].append(buffer.getvalue())
    for name in ("i", "i.gz"):
        idx.write(folder / name, images)
        made["idx images"].append((folder / name).read_bytes())
        idx.write(folder / name, labels)
        made["idx labels"].append((folder / name).read_bytes())
    names = make_request().classes
    lines = [f"{number / 7},{number % 5},{names[number % 3]}" for number in range(9)]
    made["csv"].append("\n".join(["age,weight,label", *lines]).encode())
    archive = DataSpec(format="npz", path=path.name, classes=names, shape=(1, 8, 8))
    rows = DataSpec(format="csv", path=path.name, classes=names, shape=(2,))

    def written(read: Callable[[], Any]) -> Callable[[bytes], Any]:
        def decode(data: bytes) -> Any:
            path.write_bytes(data)
            return read()

        return decode

    def every_array() -> None:
        for key in npz.keys(path):
            npz.read(path, key)

    def records(spec: DataSpec) -> Callable[[], Any]:
        return lambda: np.asarray(load_data(spec, folder).features[0:4])

    readers: dict[str, tuple[str, Callable[[], Any]]] = {
        "npz arrays": ("npz", every_array),
        "npz records": ("npz", records(archive)),
        "idx images": ("idx images", lambda: idx.read_images(path)),
        "idx labels": ("idx labels", lambda: idx.read_labels(path)),
        "csv records": ("csv", records(rows)),
    }
    for name, (kind, read) in readers.items():
        corpus = made[kind]
        yield Target(name, _bytes_maker(corpus), written(read), (DataError,))


def _bytes_maker(corpus: list[bytes]) -> Callable[[random.Random], bytes]:
    return lambda rng: damaged(rng, rng.choice(corpus), rng.choice(corpus))
