"""Uploads that are cut, resumed, taken over; and the check of a release that reads no array into memory."""

from __future__ import annotations

import hashlib
import logging
import random
from pathlib import Path

import grpc
import pytest

from dpdd.client.transport.upload import manifest_of, upload
from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.wire.exchange import CHUNK, parts
from dpdd.common.wire.release import StreamHash, inspect_signed, open_signed
from dpdd.v1 import release_pb2, transfer_pb2
from tests.client.silos import make_request, make_silo
from tests.server.transport.worlds import (
    CuttingProxy,
    big_release,
    big_request,
    entries,
    manifest_for,
    running,
    sign_payload,
    until,
    world,
)

UPLOAD, STATUS = "/dpdd.v1.Exchange/Upload", "/dpdd.v1.Exchange/Status"


def test_a_connection_that_is_cut_goes_on_where_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dpdd.exchange")
    with world(tmp_path) as here:
        silo = here.silo("north")
        cuts = [2 * CHUNK + 50_000, CHUNK + 50_000]
        proxy = CuttingProxy(here.port, cuts, lambda: sum(partial.stat().st_size for partial in here.partials()))
        request = make_request(settings={"features": 100_000})
        with running(silo, address=f"127.0.0.1:{proxy.port}"):
            here.ask(silo, request=request)
            until(lambda: here.queue.digest(request.id, "north"), 60.0)
        proxy.close()
        data = silo.outbox.get(request.id)
        assert data is not None and here.queue.read(here.releases()[0]) == data
        assert proxy.connections >= 3 and "goes on at byte" in caplog.text
        # A chunk that was cut in the middle is sent again, twice here; nothing else is.
        assert proxy.sent < len(data) + 2 * CHUNK + 100_000, (proxy.sent, len(data))
        assert entries(silo) == ["open", "reserve", "commit"]


def test_an_upload_goes_on_after_the_server_restarts(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        request = here.ask(silo, request=big_request(3 * CHUNK))
        data = big_release(silo, request)
        manifest = manifest_for(data, request.id)
        path = tmp_path / "payload"
        path.write_bytes(data)
        with path.open("rb") as file, here.channel(silo) as channel, pytest.raises(grpc.RpcError):
            channel.stream_unary(UPLOAD)(iter(list(parts(manifest, file, 0))[:3]))
        assert [partial.stat().st_size for partial in here.partials()] == [2 * CHUNK]
        here.stop()
        here.start()
        with here.channel(silo) as channel:
            wire = manifest.to_wire().SerializeToString()
            status = transfer_pb2.TransferStatus.FromString(channel.unary_unary(STATUS)(wire))
            assert (status.received, status.complete) == (2 * CHUNK, False)
            offsets, sent = list[int](), list[int]()
            upload(channel, path, manifest_of(path, request.id), offsets.append, sent.append)
            assert offsets == [2 * CHUNK]
            until(lambda: sent == [3 * CHUNK, len(data)])  # by gRPC's thread, which may come last
            upload(channel, path, manifest_of(path, request.id), offsets.append)
            assert offsets == [2 * CHUNK]  # once more sends nothing
        assert here.queue.read(here.releases()[0]) == data and here.partials() == []


def test_a_damaged_partial_file_is_found_at_the_end_and_sent_again(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        request = here.ask(silo, request=big_request(2 * CHUNK))
        data = big_release(silo, request)
        path = tmp_path / "payload"
        path.write_bytes(data)
        manifest = manifest_of(path, request.id)
        (here.queue.partial / f"north.{request.id}.{manifest.sha256}").write_bytes(bytes(CHUNK))
        with here.channel(silo) as channel:
            with pytest.raises(grpc.RpcError, match="from the start"):
                upload(channel, path, manifest, lambda _: None)
            upload(channel, path, manifest, lambda _: None)
        assert here.queue.read(here.releases()[0]) == data


def test_a_silo_keeps_one_partial_file_per_request(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        request = here.ask(silo, request=big_request(CHUNK))
        with here.channel(silo) as channel:
            for number in range(3):
                payload = bytes([number]) * (CHUNK + 1)
                path = tmp_path / "payload"
                path.write_bytes(payload)
                with path.open("rb") as file, pytest.raises(grpc.RpcError, match="ended after"):
                    channel.stream_unary(UPLOAD)(iter(list(parts(manifest_for(payload, request.id), file, 0))[:2]))
        assert len(here.partials()) == 1


def test_a_newer_upload_takes_over_from_one_that_hangs(tmp_path: Path) -> None:
    import threading

    with world(tmp_path) as here:
        silo = here.silo("north")
        request = here.ask(silo, request=big_request(2 * CHUNK))
        data = big_release(silo, request)
        path = tmp_path / "payload"
        path.write_bytes(data)
        manifest = manifest_of(path, request.id)
        hanging = threading.Event()

        def stalled() -> object:
            with path.open("rb") as file:
                yield from list(parts(manifest, file, 0))[:2]
            hanging.wait(30.0)

        with here.channel(silo) as first, here.channel(silo) as second:
            call = first.stream_unary(UPLOAD).future(stalled())
            until(lambda: here.partials() and here.partials()[0].stat().st_size == CHUNK)
            upload(second, path, manifest, lambda _: None)
            assert call.exception().code() is grpc.StatusCode.CANCELLED
            hanging.set()
        assert here.queue.read(here.releases()[0]) == data


def test_inspecting_a_file_agrees_with_opening_it(tmp_path: Path) -> None:
    """Whatever is done to a release, the check on disk and the check in memory say the same."""
    silo = make_silo(tmp_path / "north")
    answer = silo.answer(make_request().encode())
    valid = answer.data  # type: ignore[union-attr]
    inner = release_pb2.SignedRelease.FromString(valid).release
    path, rng = tmp_path / "x.release", random.Random(5)

    def accepted(data: bytes) -> bool:
        path.write_bytes(data)
        results = []
        stream_hash = StreamHash()
        for start in range(0, len(data), 100):
            stream_hash.update(memoryview(data)[start : start + 100])
        assert stream_hash.hexdigest() == hashlib.sha256(data).hexdigest()
        for check in (
            lambda: open_signed(data, silo.public_key),
            lambda: inspect_signed(path, silo.public_key, stream_hash.signed),
        ):
            try:
                header = check()
                results.append((header.silo, header.request_id))
            except (WireError, IntegrityError):
                results.append(None)
        assert results[0] == results[1], data[:200]
        return results[0] is not None

    assert accepted(valid)
    for position in [*range(min(len(valid), 600)), *range(len(valid) - 150, len(valid))]:
        assert not accepted(
            valid[:position] + bytes([valid[position] ^ (1 << rng.randrange(8))]) + valid[position + 1 :]
        )
    for cut in range(0, len(valid), 37):
        assert not accepted(valid[:cut])
    ok = 0
    for _ in range(500):  # signed by the right key, but with anything inside
        data = bytearray(inner)
        data[rng.randrange(200 if rng.random() < 0.7 else len(data))] = rng.randrange(256)
        ok += accepted(sign_payload(silo, bytes(data)))
    assert 0 < ok < 500
    release = release_pb2.Release.FromString(inner)
    release.arrays.add(name=release.arrays[0].name, dtype=release.arrays[0].dtype)
    assert not accepted(sign_payload(silo, release.SerializeToString()))
