"""What one silo can take from the others on the exchange: places for uploads, and calls."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
import pytest

from dpdd.client.transport.upload import manifest_of, upload
from dpdd.common.wire.exchange import CHUNK
from dpdd.server.transport.limits import CallRates, Pace
from tests.server.transport.test_bounds import BEAT, UPLOAD, Held, half_an_upload, messages, payload
from tests.server.transport.worlds import big_release, until, world


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
        here.server._uploads._slots = threading.BoundedSemaphore(1)
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
