"""Where batches of synthetic images are made: in this process, over several, or over GPUs; kept on disk one by one.

A batch is a function of its `Task` and its number alone, so it does not matter who makes it, when, and beside what:
a run that was killed goes on where it was, and any number of workers makes the same images. With a folder, a runner
keeps every finished batch in `<folder>/<fingerprint of the task>/batch-0003.safetensors`, and beside them a
`preview.png` that shows the images as they become.

>>> SynthesisRunner(device="abacus")
Traceback (most recent call last):
dpdd.common.errors.ConfigError: there is no device 'abacus'; choose auto, cpu or cuda
>>> SynthesisRunner(workers=3).places(batches=2)
['cpu', 'cpu']
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.files.atomic import write_atomically
from dpdd.common.models.feature_network import FeatureNetwork, LayerHook
from dpdd.common.progress import Progress, silent
from dpdd.common.synthesis.code import code_behind
from dpdd.common.synthesis.image_pyramid import ImagePyramid

Pixels = NDArray[np.uint8]

PREVIEW_SECONDS = 5.0
"""So often a batch that is being made is looked at."""


class Task(Protocol):
    """What batches are made from. It can be pickled."""

    @property
    def steps(self) -> int:
        """Of one batch."""

    def fingerprint(self, device: str) -> str:
        """The same only where every batch is the same."""

    def make(self, number: int, device: torch.device) -> Iterator[ImagePyramid]:
        """The pyramid of a batch, once after each step."""

    def preview(self, batches: Sequence[Pixels]) -> Image.Image:
        """What these batches look like."""


@dataclass(frozen=True)
class SynthesisRunner:
    """Where and by how many workers batches are made; on one kind of device it makes no difference to the images.

    Without a `folder` nothing is written. `workers` is how many processes, None for one per processor or GPU; one works
    in this process. A script that asks for more must keep its work under ``if __name__ == "__main__":``.
    """

    folder: Path | None = None
    device: str = "auto"
    workers: int | None = 1

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"there is no device {self.device!r}; choose auto, cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("this machine has no GPU that torch can use: choose device cpu, or auto")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"{self.workers} workers cannot make anything; it takes at least 1")

    @property
    def kind(self) -> str:
        """`cpu` or `cuda`."""
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device

    def places(self, batches: int) -> list[str]:
        """The device of each worker, for so many batches."""
        if self.kind == "cuda":
            devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        else:
            devices = ["cpu"] * (self.workers or os.cpu_count() or 1)
        return devices[: min(batches, self.workers or batches)]

    def make(
        self, task: Task, numbers: Sequence[int], progress: Progress = silent, what: str = "synthesising images"
    ) -> list[Pixels]:
        """The batches with these numbers: those that are kept are taken, the others are made and kept."""
        shelf = None if self.folder is None else Shelf(self.folder / task.fingerprint(self.kind), task)
        batches = {} if shelf is None else shelf.find(numbers)
        steps = dict.fromkeys(batches, task.steps)
        missing = [number for number in numbers if number not in batches]
        places = self.places(len(missing))
        states = _in_processes(task, missing, places) if len(places) > 1 else _in_this_process(task, missing, places)
        with closing(states):
            for state in states:
                steps[state.number] = state.step
                if state.images is not None:
                    batches[state.number] = state.images
                    if shelf is not None:
                        if state.step == task.steps:
                            shelf.keep(state.number, state.images)
                        shelf.show(batches)
                progress(what, sum(steps.values()), len(numbers) * task.steps)
        return [batches[number] for number in numbers]


@dataclass(frozen=True, eq=False)
class Shelf:
    """A folder with finished batches of one task, and the preview."""

    folder: Path
    task: Task

    def find(self, numbers: Sequence[int]) -> dict[int, Pixels]:
        """Those of the batches that are here and whole."""
        kept = {number: _read(self._path(number)) for number in numbers}
        return {number: images for number, images in kept.items() if images is not None}

    def keep(self, number: int, images: Pixels) -> None:
        """Write a finished batch."""
        header = {"sha256": hashlib.sha256(images.tobytes()).hexdigest()}
        write_atomically(self._path(number), safetensors.numpy.save({"images": images}, metadata=header))

    def show(self, batches: Mapping[int, Pixels]) -> None:
        """Write the preview, of the first batch and others after it; extra batches alone would not be the set."""
        if 0 not in batches:
            return
        file = io.BytesIO()
        self.task.preview([batches[number] for number in sorted(batches)]).save(file, "png")
        write_atomically(self.folder / "preview.png", file.getvalue())

    def _path(self, number: int) -> Path:
        return self.folder / f"batch-{number:04d}.safetensors"


def _read(path: Path) -> Pixels | None:
    """A kept batch; None where there is none, or a damaged one, which is then made again."""
    try:
        with safe_open(path, framework="numpy") as file:
            images: Pixels = file.get_tensor("images")
            whole = file.metadata()["sha256"] == hashlib.sha256(images.tobytes()).hexdigest()
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    return images if whole else None


@dataclass(frozen=True, eq=False)
class State:
    """How far a batch is; with its images now and then, and always after its last step."""

    number: int
    step: int
    images: Pixels | None


def _states(task: Task, number: int, device: str) -> Iterator[State]:
    looked = time.monotonic()
    for step, pyramid in enumerate(task.make(number, torch.device(device)), start=1):
        due = step == task.steps or time.monotonic() - looked > PREVIEW_SECONDS
        if due:
            looked = time.monotonic()
        yield State(number, step, pyramid.pixels() if due else None)


def _in_this_process(task: Task, numbers: Sequence[int], places: Sequence[str]) -> Generator[State, None, None]:
    """One after the other, with one thread like a worker: another number of threads adds up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number in numbers:
            yield from _states(task, number, places[0])
    finally:
        torch.set_num_threads(threads)


def _in_processes(task: Task, numbers: Sequence[int], places: Sequence[str]) -> Generator[State, None, None]:
    """In as many processes as there are places; each gets its next number when it has finished one."""
    context, waiting = get_context("spawn"), iter(numbers)
    workers: dict[Any, SpawnProcess] = {}
    busy: set[Any] = set()
    try:
        for place in places:
            ours, theirs = context.Pipe()
            workers[ours] = context.Process(target=_work, args=(theirs, task, place), daemon=True)
            workers[ours].start()
            theirs.close()  # only the worker holds it now, so that its end is seen here
            busy.add(ours)
            ours.send(next(waiting))
        while busy:
            for pipe in wait(list(busy)):
                state = _next_state(cast("Connection", pipe), workers[pipe])
                yield state
                if state.step == task.steps:
                    if (number := next(waiting, None)) is None:
                        busy.remove(pipe)
                    else:
                        cast("Connection", pipe).send(number)
    finally:
        for process in workers.values():
            process.terminate()
            process.join()


def _next_state(pipe: Connection, worker: SpawnProcess) -> State:
    try:
        state: State = pipe.recv()
    except (EOFError, OSError):
        worker.join()
        raise DpddError(
            f"a process that synthesises ended with exit code {worker.exitcode} (-9: it may have been out of memory); "
            "run again, perhaps with fewer workers: finished batches are kept in the run's folder"
        ) from None
    return state


def _work(pipe: Connection, task: Task, place: str) -> None:
    """A worker: numbers come in, states go out, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    torch.set_num_threads(1)
    with suppress(EOFError, ConnectionError):
        while True:
            for state in _states(task, pipe.recv(), place):
                pipe.send(state)


def fingerprint(task: type, facts: Mapping[str, object], arrays: Mapping[str, NDArray]) -> str:
    """A name for what a task with these facts (JSON) and these arrays makes, by the code that it has today.

    >>> fingerprint(State, {"seed": 1}, {"sums": np.zeros(2)}) == fingerprint(State, {"seed": 1}, {"sums": np.ones(2)})
    False
    """
    decides = {"facts": dict(facts), "code": code_behind(task.__module__), "torch": torch.__version__}
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(json.dumps([name, str(arrays[name].dtype), arrays[name].shape]).encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()[:24]


T = TypeVar("T")


def moved(thing: T, device: torch.device) -> T:
    """A copy of `thing` whose tensors and networks, in dataclasses and collections too, are on `device`.

    On a GPU that can, networks compute in bfloat16 where it does no harm; what comes out of them is float32.
    """
    copied: Any = thing
    if isinstance(thing, Tensor):
        copied = thing.to(device)
    elif isinstance(thing, FeatureNetwork):
        copied = copy.deepcopy(thing).to(device)
        if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
            copied = MixedPrecision(copied, device.type)
    elif isinstance(thing, tuple):
        copied = tuple(moved(part, device) for part in thing)
    elif isinstance(thing, Mapping):
        copied = {key: moved(value, device) for key, value in thing.items()}
    elif is_dataclass(thing) and not isinstance(thing, type):
        changes = {field.name: moved(getattr(thing, field.name), device) for field in fields(thing)}
        copied = replace(thing, **changes)
    return cast("T", copied)


class MixedPrecision(FeatureNetwork):
    """A network whose convolutions and products are in bfloat16, with float32 features and layers_of."""

    def __init__(self, network: FeatureNetwork, kind: str) -> None:
        super().__init__(len(network.normalisation.mean), network.normalisation)
        self.network, self.kind = network, kind
        self.whitening, self.head = network.whitening, network.head

    def features(self, images: Tensor, hook: LayerHook | None = None) -> Tensor:
        """As the network's own."""
        with torch.autocast(self.kind, dtype=torch.bfloat16):
            show = None if hook is None else lambda layer: hook(layer.float())
            return self.network.features(images, show).float()
