"""``dpdd-sim bench-synthesis``: what a step of SPS's synthesis costs beside a plain pass through the same networks.

The plain pass goes forward and backward through every network that a step looks through, with the same batch of images.
Both are timed in turns in one process and on one thread, as CPU time. What the rest of a step goes to is timed part by
part: each forward and backward by itself, so that parts need not add up to the whole.

The statistics are those of made-up records without noise; a step takes as long whatever they are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dpdd.common.cli import Commands, table
from dpdd.scenarios.papers.base import pairs

if TYPE_CHECKING:
    from torch import Tensor

    from dpdd.common.methods.sps.settings import MethodSettings, SynthesisSettings
    from dpdd.common.methods.sps.synthesis import ImageTask

CLASSES, RECORDS = 10, 200
Work = Callable[[], object]


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("bench-synthesis", _bench, "time a step of SPS's synthesis beside a plain pass")
    parser.add_argument("--backbone", default="scatter28", help="default: %(default)s")
    parser.add_argument("--settings", nargs="+", default=[], metavar="KEY=VALUE", help="of SPS, or of its preset")
    parser.add_argument("--method", default="sps", choices=("sps", "sps-published"), help="default: %(default)s")
    parser.add_argument("--synthesis", nargs="+", default=[], metavar="KEY=VALUE", help="of the synthesis")
    parser.add_argument("--steps", type=int, default=8, metavar="N", help="that are timed (default: %(default)s)")


def _bench(options: argparse.Namespace) -> None:
    import torch

    from dpdd.common.methods.registry import method

    torch.set_num_threads(1)
    chosen = method(options.method)
    settings = chosen.settings({**pairs(options.settings), "backbone": options.backbone})
    how = chosen.synthesis_settings(pairs(options.synthesis))
    task = _task(options, settings, how)
    step, parts = _steps(task), _parts(task)
    for work in (step, *parts.values()):
        work()
    times = [[_timed(work) for work in (step, *parts.values())] for _ in range(options.steps)]
    whole, *each = (statistics.median(of) for of in zip(*times, strict=True))
    ratio = statistics.median(taken[0] / taken[1] for taken in times)
    images = len(task.labels)
    print(f"{options.method} on {options.backbone}, {images} images a step, one thread, {options.steps} turns")
    rows = [["a step of the synthesis", f"{1000 * whole:,.0f}"]]
    rows += [[name, f"{1000 * seconds:,.0f}"] for name, seconds in zip(parts, each, strict=True)]
    print(table(["", "CPU milliseconds"], rows))
    print(f"ratio of a step to the plain pass: {ratio:.2f} (median over turns)")


def _task(options: argparse.Namespace, settings: MethodSettings, how: SynthesisSettings) -> ImageTask:
    """The task of making images from the sums of made-up records."""
    import numpy as np

    from dpdd.client import local_synthesis
    from dpdd.client.records.records import Records
    from dpdd.common.methods.base import RunDescription
    from dpdd.common.methods.registry import method
    from dpdd.common.methods.sps.synthesis import ImageTask
    from dpdd.common.models.backbone import load
    from dpdd.common.privacy.entropy import SeededEntropy
    from dpdd.common.progress import silent
    from dpdd.common.synthesis.statistics import of_one_silo
    from dpdd.common.wire.request import ReleaseRequest

    card = load(options.backbone).card
    shape = (card.architecture.channels, card.architecture.height, card.architecture.width)
    chosen, one_stage = method(options.method), settings.model_copy(update={"stages": 1, "more_backbones": ()})
    request = ReleaseRequest(
        run="bench",
        method=options.method,
        settings=one_stage.on_wire(),
        epsilon=float("inf"),
        delta=1e-5,
        classes=tuple(f"class-{label}" for label in range(CLASSES)),
        shape=shape,
        public_seed=1,
        backbone_sha256=bytes.fromhex(card.sha256),
    )
    generator = np.random.Generator(np.random.PCG64(0))
    records = Records(generator.random((RECORDS, *shape), dtype=np.float32), np.arange(RECORDS) % CLASSES)
    answers = local_synthesis.run_stages(records, request, chosen, one_stage, SeededEntropy(0), silent)
    sums = [of_one_silo(answer.arrays, answer.event, asked.stage_input) for asked, answer in answers]
    run = RunDescription.of(request, how.batch_per_class)
    return ImageTask(sums, one_stage, how.model_copy(update={"steps": 100_000}), run.public, how.batch_per_class)


def _steps(task: ImageTask) -> Work:
    """One more step of a batch that is being made."""
    import torch

    pyramids: Iterator[object] = task.make(0, torch.device("cpu"))
    return lambda: next(pyramids)


def _parts(task: ImageTask) -> dict[str, Work]:
    """The plain pass, and what else is in a step, with inputs of their own; each forward and backward."""
    import torch

    from dpdd.common.synthesis.image_pyramid import ImagePyramid, outside, random_affine, roughness

    generator, shape = torch.Generator().manual_seed(0), task.run.image_shape
    (look, *_), moments = task.goals
    spec, wanted = look
    pyramid, labels, teacher = ImagePyramid(len(task.labels), shape, generator), task.labels, task.released.teacher
    images = pyramid.images().detach()
    weights = None if teacher is None else torch.from_numpy(teacher.weights)

    def plain() -> None:
        _back(spec.network.features(_leaf(images)))

    def statistics_and_network() -> None:
        vectors, embeddings = spec.measure(_leaf(images))
        _back(vectors, *(() if embeddings is None else (embeddings,)))

    with torch.no_grad():
        measured = spec.measure(images)

    def losses() -> None:
        from torch.nn import functional

        from dpdd.common.methods.sps.targets import mismatch

        vectors = _leaf(measured[0])
        found = [mismatch(vectors, labels, spec, wanted, task.settings.class_weight)]
        if moments is not None and measured[1] is not None and weights is not None:
            embeddings = _leaf(measured[1])
            found += [*moments.losses(embeddings, labels), functional.cross_entropy(embeddings @ weights.T, labels)]
        _back(*found)

    def augmentation() -> None:
        _back(random_affine(pyramid.images(), task.settings.augmentation_strength, task.settings.flips, generator))

    def priors() -> None:
        seen = _leaf(images)
        _back(roughness(seen), outside(seen))

    return {
        "plain pass through the network": plain,
        "the same with statistics and embedding": statistics_and_network,
        "losses": losses,
        "image pyramid, shifts and zooms": augmentation,
        "smoothness and range": priors,
    }


def _leaf(values: Tensor) -> Tensor:
    return values.clone().requires_grad_(True)


def _back(*results: Tensor) -> None:
    """Backward from all that can go backward."""
    total = sum((each.sum() for each in results if each.requires_grad), start=results[0].new_zeros(()))
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]


def _timed(work: Work) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
