"""What one silo can take from the others on the exchange: places for uploads, and calls."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from dpdd.client.transport.upload import manifest_of, upload
from dpdd.common.wire.exchange import CHUNK, Manifest
from dpdd.server.transport import service
from dpdd.server.transport.limits import CallRates, Pace
from dpdd.server.transport.service import CALL_THREADS, JOIN_THREADS
from dpdd.server.transport.streams import STREAM_THREADS
from dpdd.server.transport.uploads import AT_ONCE
from dpdd.v1 import exchange_pb2
from tests.server.transport.test_bounds import BEAT, REQUESTS, UPLOAD, Held, half_an_upload, messages, payload
from tests.server.transport.test_many import LightSilo
from tests.server.transport.worlds import big_release, big_request, until, world


def test_a_drip_that_is_just_quick_enough_for_each_chunk_is_ended_by_its_average_and_told_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    with world(tmp_path) as here:
        here.server._uploads._clock = lambda: now[0]
        silo = here.silo("drip")
        with half_an_upload(here, silo) as (call, held):
            now[0] = 600.0  # a chunk in ten minutes, which came just now
            error = call.exception(timeout=120)
            held.go.set()
        assert error is not None and error.code() is grpc.StatusCode.CANCELLED
        assert "bytes a second on average" in caplog.text
        path = tmp_path / "drip.payload"
        manifest = manifest_of(path, here.partials()[0].name.split(".")[1])
        began: list[int] = []
        with here.channel(silo) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                upload(channel, path, manifest, began.append)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # at which a node tries again
            assert caught.value.details() == (
                "the last upload by silo drip was ended, and can go on: "
                f"{CHUNK // 600} bytes a second on average after 600 s, and the least is 16384"
            )
            upload(channel, path, manifest, began.append)
        assert began == [CHUNK] and len(here.releases()) == 1


def test_a_pace_has_grace_an_average_and_a_deadline() -> None:
    pace = Pace(grace_seconds=10.0, least_rate=100.0, deadline_seconds=50.0, on_its_way=0)
    assert pace.broken_by(10.0, 0) is None and pace.broken_by(20.0, 2000) is None
    assert "on average" in str(pace.broken_by(20.0, 1999))
    assert "longer than 50 s" in str(pace.broken_by(51.0, 1 << 30))


@pytest.mark.parametrize("rate", [CHUNK / 239, 10_000.0, 16_384.0, 20_000.0])
def test_a_slow_line_gets_a_chunk_through_and_one_at_the_least_rate_is_never_too_slow(rate: float) -> None:
    whole = [int(rate * second) // CHUNK * CHUNK for second in range(3600)]
    ended = next((second for second in range(3600) if Pace().broken_by(second, whole[second])), None)
    assert (ended is None) == (rate >= Pace().least_rate)
    assert ended is None or whole[ended] >= CHUNK


def test_a_small_upload_does_not_wait_behind_large_ones(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        large, small = here.silo("large"), here.silo("small")
        here.server._uploads._slots = asyncio.Semaphore(1)
        path, manifest = payload(here, large, 4 * CHUNK)
        request = here.ask(small)
        little = tmp_path / "little"
        little.write_bytes(big_release(small, request))
        with here.channel(large) as slow, here.channel(small) as quick:
            held = Held(*messages(path, manifest)[:2])
            going = slow.stream_unary(UPLOAD).future(held)  # without a reference it would be cancelled
            until(lambda: here.server._uploads._writing)
            upload(quick, little, manifest_of(little, request.id), lambda _: None)
            assert here.server._uploads._writing  # the large one has its place still
            assert not going.done()
            held.go.set()
        assert len(here.releases()) == 1


def test_a_flood_of_calls_by_one_silo_is_refused_and_another_goes_on(tmp_path: Path) -> None:
    now = [0.0]
    with world(tmp_path) as here:
        flood, calm = here.silo("flood"), here.silo("calm")
        here.server._calls.rates = CallRates(1.0, 5, clock=lambda: now[0])
        with here.channel(flood) as many, here.channel(calm) as one:
            for _ in range(5):
                many.unary_unary(BEAT)(b"", timeout=60)
            with pytest.raises(grpc.RpcError) as caught:
                many.unary_unary(BEAT)(b"", timeout=60)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "calls too often" in caught.value.details()
            assert one.unary_unary(BEAT)(b"", timeout=60) == b""
            now[0] = 1.0
            assert many.unary_unary(BEAT)(b"", timeout=60) == b""


def connect(channel: grpc.Channel) -> grpc.Call:
    """A stream of requests that the coordinator has accepted."""
    stream = channel.unary_stream(REQUESTS)(b"", timeout=300)
    stream.initial_metadata()
    return stream


def test_streams_that_take_all_places_leave_heartbeats_and_uploads_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_STREAMS", 2)
    with world(tmp_path) as here, ExitStack() as stack:
        silos = [here.silo(name) for name in ("one", "two", "three")]
        channels = [stack.enter_context(here.channel(silo)) for silo in silos]
        streams = [connect(channel) for channel in channels[:2]]
        late = channels[2].unary_stream(REQUESTS)(b"", timeout=60)
        assert late.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # at which a node tries again
        assert "2 connected silos already" in late.details()
        assert channels[2].unary_unary(BEAT)(b"", timeout=60) == b""
        path, manifest = payload(here, silos[2])
        upload(channels[2], path, manifest, lambda _: None)
        assert len(here.releases()) == 1 and all(stream.is_active() for stream in streams)
        streams[0].cancel()
        until(lambda: here.server._stream_places.taken == 1)
        assert connect(channels[2]).is_active()


def test_calls_that_take_all_other_places_leave_streams_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_OTHERS", 4)
    with world(tmp_path) as here:
        greedy, other = here.silo("greedy"), here.silo("other")
        with here.channel(greedy) as many, here.channel(other) as one:
            hanging = [many.stream_unary(BEAT).future(Held()) for _ in range(6)]
            until(lambda: sum(call.done() for call in hanging) == 2)
            assert connect(one).is_active()
            for call in hanging:
                call.cancel()
            until(lambda: here.server._other_places.taken == 0)
            assert one.unary_unary(BEAT)(b"", timeout=60) == b""


def test_connected_silos_and_waiting_uploads_take_no_threads(tmp_path: Path) -> None:
    with world(tmp_path) as here, ExitStack() as stack:
        silos = [LightSilo(f"silo-{number:02d}", here.coordinator) for number in range(40)]
        channels = [stack.enter_context(silo.connect(here.port)) for silo in silos]
        streams = [connect(channel) for channel in channels]
        request = big_request(10 * CHUNK)
        here.queue.ask(request.id, request.encode(), [])
        here.queue.expected(request.id, wait=True)
        here.queue.ask(request.id, request.encode(), [silo.name for silo in silos])
        for stream in streams:
            assert exchange_pb2.RequestEnvelope.FromString(next(stream)).request == request.encode()
        uploads = [channel.stream_unary(UPLOAD).future(Held(announced(request.id))) for channel in channels]
        until(lambda: len(here.server._uploads._writing) == AT_ONCE)
        until(lambda: sum(bool(turn.calls) for turn in here.server._uploads._turns.values()) == len(silos))
        ours = ("calls", "streams", "uploads", "newcomers", "hashing", "syncing", "exchange")
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]
        assert len(names) <= CALL_THREADS + JOIN_THREADS + STREAM_THREADS + 2 * AT_ONCE + 4, names
        assert channels[0].unary_unary(BEAT)(b"", timeout=60) == b""
        for call in (*uploads, *streams):
            call.cancel()
        until(lambda: here.server._other_places.taken == here.server._stream_places.taken == 0)


def announced(request_id: str) -> bytes:
    """The beginning of a large upload."""
    manifest = Manifest("ab" * 32, 10 * CHUNK, request_id)
    return exchange_pb2.UploadPart(manifest=manifest.to_wire()).SerializeToString()


def test_a_revoked_silo_that_does_not_read_is_let_go(tmp_path: Path) -> None:
    with world(tmp_path) as here, ExitStack() as stack:
        deaf = here.silo("deaf")
        channel = stack.enter_context(here.channel(deaf))
        stream = connect(channel)
        large = os.urandom(16 << 20)
        here.queue.ask(hashlib.sha256(large).hexdigest(), large, ["deaf"])
        until(lambda: any(stream.writing for stream in here.server._streams._streams.values()))
        here.coordinator.registry.revoke("deaf")
        until(lambda: not here.server._streams._streams)
        assert stream.is_active()  # it has not read that either
        channel.close()
        until(lambda: here.server._stream_places.taken == 0)
