"""Embeddings kept between stages: the same releases to the last bit, whatever is kept where, and nothing read twice."""

from __future__ import annotations

import math
import os
import pickle
import resource
import select
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client import local_synthesis
from dpdd.client.mechanisms import base
from dpdd.client.open_records import OpenRecords
from dpdd.client.records import kept as kept_rows
from dpdd.client.records.kept import Kept
from dpdd.client.records.records import Records
from dpdd.client.silo import Silo
from dpdd.client.worker.worker import Worker
from dpdd.common.data.row_file import RowFile, RowWriter
from dpdd.common.errors import DataError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.methods.request_plan import settings_of
from dpdd.common.methods.sps.feature_statistics import FeatureStatistics
from dpdd.common.methods.sps.specification import specification, stage_input_shapes
from dpdd.common.models.backbone import load
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.randomness import gaussians
from dpdd.common.wire.answer import SignedReleaseBytes
from dpdd.common.wire.release import Release, open_signed
from dpdd.common.wire.request import ReleaseRequest
from tests.client.silos import make_request, make_silo
from tests.client.worker.forked import children

STAGES = 3
BACKBONE = "scattering-1x8x8"
SETTINGS = {
    "sps": {"backbone": BACKBONE, "features": 20, "picture": 3, "stages": STAGES, "thumbnail": 2},
    "private-evolution": {
        "backbone": BACKBONE,
        "features": 12,
        "picture": 2,
        "rounds": STAGES,
        "population": 4,
        "generator": "shapes",
    },
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as a_worker:
        yield a_worker


def silo_in(folder: Path, *, worker: Worker | None = None, opened: OpenRecords | None = None, lines: str = "") -> Silo:
    make_silo(folder, epsilon=4.0, records=150, extra=f"[simulation]\nnoise_seed = 5\n[worker]\n{lines}")
    path = folder / "silo.toml"
    path.write_text(path.read_text().replace('methods = ["dp-merf"]', 'methods = ["sps", "private-evolution"]'))
    return Silo(folder, worker, opened)


def first_request(name: str = "sps") -> ReleaseRequest:
    settings = method(name).settings(SETTINGS[name])
    sha256 = load(method(name).backbones(settings)[0]).card.sha256
    return make_request(method=name, settings=settings.on_wire(), backbone_sha256=bytes.fromhex(sha256))


def later_request(stage: int) -> ReleaseRequest:
    """Where stages lead is of no interest here: each is asked with another classifier."""
    request = first_request()
    spec = specification(method("sps").settings(SETTINGS["sps"]), RunDescription.of(request), stage)
    given = {name: gaussians(stage, name, shape).astype(np.float32) for name, shape in stage_input_shapes(spec).items()}
    return replace(request, stage=stage, stage_input=given)


def answered(silo: Silo, after_each: Callable[[], object] = lambda: None) -> list[Release]:
    """All stages."""
    releases = []
    for stage in range(STAGES):
        answer = silo.answer((later_request(stage) if stage else first_request()).encode())
        assert isinstance(answer, SignedReleaseBytes), answer
        releases.append(open_signed(answer.data, silo.public_key))
        after_each()
    return releases


def bits(releases: list[Release]) -> list[dict[str, bytes]]:
    return [{name: array.tobytes() for name, array in release.arrays.items()} for release in releases]


@pytest.fixture(scope="module")
def computed_again(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    """What a silo releases that keeps nothing."""
    return bits(answered(silo_in(tmp_path_factory.mktemp("none") / "north", lines="keep_embeddings = 0")))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were looked at, batch by batch."""
    found: list[int] = []
    look = FeatureStatistics.look

    def counted(self: FeatureStatistics, images: object) -> object:
        found.append(len(images))  # type: ignore[arg-type]
        return look(self, images)  # type: ignore[arg-type]

    monkeypatch.setattr(FeatureStatistics, "look", counted)
    return found


@pytest.mark.parametrize("in_memory", [0, kept_rows.IN_MEMORY], ids=["file", "memory"])
def test_releases_are_the_same_to_the_last_bit_and_records_are_embedded_once(
    in_memory: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passes: list[int],
    computed_again: list[dict[str, bytes]],
) -> None:
    monkeypatch.setattr(kept_rows, "IN_MEMORY", in_memory)
    opened = OpenRecords()
    silo = silo_in(tmp_path / "north", opened=opened)
    assert bits(answered(silo)) == computed_again
    assert sum(passes) == STAGES * 2 * 64 + 3 * 64, "noise is tried in each stage, records in the first"
    assert not opened._open, "after the last stage nothing is open any more"
    assert not [path for path in tmp_path.rglob("*") if "kept" in path.name or path.suffix == ".tmp"]


def workers(worker: Worker) -> list[int]:
    assert worker._process is not None
    return children(worker._process.pid)


def test_the_worker_that_stays_has_them_and_records_are_not_read_again(
    tmp_path: Path, worker: Worker, computed_again: list[dict[str, bytes]]
) -> None:
    silo, pids = silo_in(tmp_path / "north", worker=worker), set[int]()

    def after_each() -> None:
        pids.update(workers(worker))
        (silo.folder / "records.npz").write_bytes(b"")  # the very file that is open: reading it fails from now on

    assert bits(answered(silo, after_each)) == computed_again
    assert len(pids) == 1, "planning a later stage sends nobody away"


def test_a_worker_that_was_killed_is_replaced_and_computes_again(
    tmp_path: Path, worker: Worker, computed_again: list[dict[str, bytes]]
) -> None:
    def after_each() -> None:
        for pid in workers(worker):
            os.kill(pid, signal.SIGKILL)
            # A dying one may still be asked: the supervisor says that it is gone.
            worker._control and select.select([worker._control], [], [], 60.0)

    assert bits(answered(silo_in(tmp_path / "north", worker=worker), after_each)) == computed_again


@pytest.mark.parametrize("name", ["sps", "private-evolution"])
def test_a_set_that_the_silo_makes_itself_embeds_once_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (70, 1, 8, 8), dtype=np.uint8)
    records = Records(images, np.arange(70) % 3)
    request = replace(first_request(name), epsilon=math.inf)
    if name == "sps":  # whose layer statistics ask for a small synthesis between stages
        request = replace(request, settings={**request.settings, "thumbnail": 0})
    seen: list[int] = []
    embedded = base.Embedding.asked

    def counted(request: ReleaseRequest, of: Any, *more: object) -> base.Embedding:
        return embedded(request, lambda images: seen.append(len(images)) or of(images), *more)

    monkeypatch.setattr(base.Embedding, "asked", counted)
    found = []
    for given in (records, records.keeping(1 << 20)):
        answers = local_synthesis.run_stages(
            given, request, method(name), settings_of(request), SeededEntropy(0), lambda *_: None
        )
        found.append([{key: array.tobytes() for key, array in each.arrays.items()} for _, each in answers])
    assert found[0] == found[1] and len(set(map(str, found[0]))) == STAGES
    assert sum(seen) == STAGES * (128 + 128) + STAGES * 128 + 128, "noise is tried in each stage"


def test_what_belongs_to_some_records_is_never_that_of_others() -> None:
    records = Records(np.zeros((3, 1, 2, 2), np.uint8), np.zeros(3, np.int64)).keeping(1 << 10)
    assert records.kept is not None and records.take(np.array([0, 1])).kept is None
    assert records.keeping(1 << 10).kept is not records.kept and records.keeping(0).kept is None
    for private in (records.kept, records.kept.begin("a key", 3, 1)):
        assert repr(private).endswith("(private)")
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(records.kept)


def test_the_quota_is_for_all_kinds_together_and_a_part_is_never_found() -> None:
    kept = Kept(100)
    first, second, third = kept.begin("first", 5, 2), kept.begin("second", 5, 2), kept.begin("third", 5, 3)
    assert (first.goes_on, second.goes_on, third.goes_on) == (True, True, False)
    first.add(np.ones((3, 2), np.float32))
    assert kept.find("first") is None
    first.add(np.ones((2, 2), np.float32))
    third.add(np.ones((5, 3), np.float32))
    assert kept.find("first") is not None and kept.find("second") is None and kept.find("third") is None
    assert kept.begin("second", 5, 2).goes_on, "once more, as the stage that computed it failed: room is taken once"
    kept.clear()
    assert kept.find("first") is None and kept.begin("fourth", 5, 5).goes_on


def test_a_file_has_no_name_leaves_the_disk_room_and_is_no_larger_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_rows, "IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    kept = Kept(1 << 20)
    kept.begin("a key", 4, 2).add(rows)
    found = kept.find("a key")
    assert isinstance(found, RowFile) and list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(found[:], rows)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (31, limits[1]))
    assert not Kept(1 << 20).begin("a key", 4, 2).goes_on
    monkeypatch.undo()
    monkeypatch.setattr(kept_rows, "IN_MEMORY", 0)
    assert not Kept(1 << 62).begin("a key", 1 << 40, 1 << 10).goes_on, "more than half of any disk's free space"


def test_a_disk_that_fills_up_costs_nothing_but_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "IN_MEMORY", 0)
    append = RowWriter.append

    def full(self: RowWriter, rows: np.ndarray) -> None:
        append(self, rows)
        raise DataError("cannot take a temporary copy of the records (No space left on device)")

    kept = Kept(1 << 20)
    keeping = kept.begin("a key", 4, 2)
    keeping.add(np.ones((2, 2), np.float32))
    monkeypatch.setattr(RowWriter, "append", full)
    keeping.add(np.ones((2, 2), np.float32))
    assert kept.find("a key") is None and not keeping.goes_on
