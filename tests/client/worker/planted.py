"""A method that misbehaves in the worker on request, and a supervisor's program that knows it.

``python -m tests.client.worker.planted FD`` is `dpdd.client.worker` with one more method; tests give it to a `Worker`.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.client.answering import make
from dpdd.client.mechanisms.base import Contribution, Mechanism, privatised_sum
from dpdd.client.records.records import Records
from dpdd.client.silo import Silo
from dpdd.client.worker import jobs, supervisor
from dpdd.client.worker.worker import Worker
from dpdd.common.config import Settings
from dpdd.common.errors import DataError
from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.plan import Plan, gaussian_plan
from dpdd.common.methods.registry import METHODS
from dpdd.common.privacy.clipping import Layout, class_segment
from dpdd.common.privacy.entropy import Entropy, SeededEntropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import Progress
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.release import release_of
from dpdd.common.wire.request import ReleaseRequest
from tests.client.silos import make_request, make_silo

ROOT = Path(__file__).resolve().parents[3]
NAME = "planted"
PRIVATE_HALF = f"dpdd.client.mechanisms.{NAME}"
RECORD = "patient 4711, positive"
BLOCK = 1 << 24


class MethodSettings(Settings):
    what: str = "nothing"


class Planted(Method[MethodSettings, Settings], family=NAME):
    def layout(self, settings: MethodSettings, run: RunDescription, stage: int) -> Layout:
        return Layout((class_segment("sums", 2, len(run.classes)),))

    def plan(self, request: ReleaseRequest, settings: MethodSettings) -> Plan:
        if settings.what == "plan for ever":
            for_ever()
        if settings.what == "plan at length":
            fill(bytearray)
        return gaussian_plan(request, [self.layout(settings, RunDescription.of(request), 0)])

    def synthesise(
        self, statistics: Sequence[Statistics], settings: MethodSettings, synthesis: Settings, run: RunDescription
    ) -> LabelledSet:
        raise NotImplementedError


METHOD = Planted(NAME, "whatever a test asks for", "none")


class PlantedMechanism(Mechanism[MethodSettings]):
    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MethodSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        misbehave(settings.what)

        def contributions(images: NDArray[np.float32], _labels: NDArray[np.int64]) -> Contribution:
            return images.reshape(len(images), -1)[:, :2], {}

        layout = METHOD.layout(settings, RunDescription.of(request), 0)
        return privatised_sum(records, layout, contributions, plan, entropy, progress)


MECHANISM = PlantedMechanism()


def misbehave(what: str) -> None:
    match what:
        case "memory":
            fill(bytearray)
        case "memory that is not touched":
            np.zeros(1 << 33, np.uint8)
        case "shared memory":
            fill(shared)
        case "disk":
            from dpdd.common.data.row_file import RowWriter

            writer = RowWriter((BLOCK,), np.uint8)
            for _ in range(1000):
                writer.append(np.zeros((1, BLOCK), np.uint8))
        case "loop":
            for_ever()
        case "sleep":
            time.sleep(3600.0)
        case "leave a process behind":
            if (left := os.fork()) == 0:
                time.sleep(3600.0)
                os._exit(0)
            Path(tempfile.gettempdir(), "left").write_text(str(left))
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "quote":
            raise ValueError(RECORD)
        case "print":
            print(RECORD, flush=True)
            print(RECORD, file=sys.stderr, flush=True)
        case "look around":
            raise DataError(json.dumps(surroundings()))


def for_ever() -> None:
    while True:
        pass


def fill(block: Any) -> None:
    """Take memory without end; slowly enough that a test that fails does not take the machine with it."""
    kept = []
    for _ in range(200):
        kept.append(block(BLOCK))
        kept[-1][:] = b"x" * BLOCK
    raise AssertionError(f"{200 * BLOCK} bytes, and nobody minded")


def shared(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size)


def surroundings() -> dict[str, Any]:
    """What a worker has from those that started it."""
    descriptors = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that listed them
            descriptors[path.name] = str(path.readlink())
    return {"descriptors": descriptors, "environment": sorted(os.environ)}


def lying(header: Mapping[str, Any], request: bytes, progress: Progress) -> bytes:
    """An answer that is not what was asked for, where the request says so; otherwise the honest one."""
    assignment = jobs.assignment_from_json(header, request)
    lie = assignment.request.settings.get("what", "")
    if lie in ("garbage", "too much"):
        return b"\xff" * (40 if lie == "garbage" else 1 << 20)
    if lie in ("another silo", "another event", "seeded noise"):
        half, settings, plan = MECHANISM, METHOD.settings({}), assignment.plan
        records = Records(np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64))
        entropy = SeededEntropy(1) if lie == "seeded noise" else assignment.entropy()
        if lie == "another event":
            plan = METHOD.plan(make_request(epsilon=2.0, method=NAME, settings={}), settings)
        stated = {**assignment.stated, **({"silo": "south"} if lie == "another silo" else {})}
        privatised = half.run(records, assignment.request, settings, plan, entropy, progress)
        return release_of(privatised, assignment.request, **stated).encode()
    release = make(assignment, progress)
    if lie == "another array":
        object.__setattr__(release, "arrays", {**release.arrays, "records": np.zeros(3, np.int64)})
    if lie == "a larger array":
        object.__setattr__(release, "arrays", {"sums": np.zeros((3, 3), np.int64)})
    return release.encode()


def register() -> None:
    """For processes of their own."""
    METHODS[NAME] = METHOD
    sys.modules[PRIVATE_HALF] = sys.modules[__name__]


@pytest.fixture
def planted_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, NAME, METHOD)
    monkeypatch.setitem(sys.modules, PRIVATE_HALF, sys.modules[__name__])


@contextmanager
def planted_worker() -> Iterator[Worker]:
    """A worker whose program knows the method; it imports no torch, so it starts quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with Worker((sys.executable, "-m", "tests.client.worker.planted")) as worker:
            worker.start()
            yield worker


def planted_silo(folder: Path, worker: Worker, *, policy: str = "", section: str = "") -> Silo:
    """A silo that may be asked for the method."""
    make_silo(folder, extra=policy)
    text = (folder / "silo.toml").read_text().replace('methods = ["dp-merf"]', f'methods = ["dp-merf", "{NAME}"]')
    (folder / "silo.toml").write_text(f"{text}\n[worker]\n{section}\n")
    return Silo(folder, worker)


def planted_request(what: str, run: str = "test", epsilon: float = 0.1) -> ReleaseRequest:
    """A request for the method."""
    return make_request(run, epsilon, method=NAME, settings={"what": what})


def serve_job(channel: Any) -> None:
    jobs.serve_job(channel, {**jobs.JOBS, "answer": lying})


if __name__ == "__main__":
    register()
    supervisor.main(serve_job)
