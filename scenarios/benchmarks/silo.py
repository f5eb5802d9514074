"""``dpdd-sim bench-silo``: what a silo's pass over its records costs beside a plain forward pass of the backbone.

Both are timed in turns in one process, in batches of the same size and on one thread, as CPU time. The silo's pass has
all that a release does to its records, the batches of noise included that each release tries first. Noise is drawn once
per release whatever the number of records, so it is timed apart.

A second stage follows the first: once with the embeddings that the first one kept, once without. Both give the same
sums, which is checked.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dpdd.common.cli import Commands, table
from dpdd.common.errors import IntegrityError

if TYPE_CHECKING:
    from dpdd.common.privacy.privatise import Privatised

SIGMA = 4.0
"""Of the noise; drawing it takes about as long at any width."""


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("bench-silo", _bench, "time a silo's SPS pass beside a plain forward pass of its backbone")
    parser.add_argument("--backbone", default="scatter28", help="default: %(default)s")
    parser.add_argument("--records", type=int, default=4000, metavar="N", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--features", type=int, default=512, metavar="N", help="of the embedding (default: %(default)s)"
    )
    parser.add_argument(
        "--layers", type=int, default=0, metavar="N", help="layer statistics by class of so many last layers as well"
    )
    parser.add_argument("--in-file", action="store_true", help="keep embeddings in a file, however few there are")


def _bench(options: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from dpdd.client.mechanisms.base import BATCH
    from dpdd.client.mechanisms.sps import MECHANISM
    from dpdd.client.records import kept
    from dpdd.client.records.records import Records
    from dpdd.common.methods.base import RunDescription
    from dpdd.common.methods.registry import method as method_called
    from dpdd.common.methods.sps.settings import MethodSettings
    from dpdd.common.methods.sps.specification import specification, stage_input_shapes
    from dpdd.common.models.backbone import load
    from dpdd.common.privacy import discrete_gaussian
    from dpdd.common.privacy.clipping import FIXED_POINT_ONE
    from dpdd.common.privacy.entropy import SeededEntropy
    from dpdd.common.wire.request import ReleaseRequest

    torch.set_num_threads(1)
    backbone = load(options.backbone)
    architecture = backbone.card.architecture
    shape = (architecture.channels, architecture.height, architecture.width)
    most = backbone.network.whitening.dimensions
    settings = MethodSettings(
        backbone=options.backbone,
        features=min(options.features, most),
        stages=2,
        class_layers=options.layers,
        global_dimensions=48 if options.layers else 0,
    )
    generator = np.random.Generator(np.random.PCG64(0))
    images = generator.random((options.records, *shape), dtype=np.float32)
    records = Records(images, generator.integers(0, 10, options.records))
    first = ReleaseRequest(
        run="bench",
        method="sps",
        settings=settings.model_dump(mode="json"),
        epsilon=float("inf"),
        delta=1e-5,
        classes=tuple(f"class-{i}" for i in range(10)),
        shape=shape,
        public_seed=1,
    )

    def forward() -> None:
        with torch.inference_mode():
            for start in range(0, len(images), BATCH):
                backbone.network.features(torch.from_numpy(images[start : start + BATCH]))

    sps = method_called("sps")
    if options.in_file:
        kept.IN_MEMORY = 0

    def answer(given: Records, request: ReleaseRequest) -> Privatised:
        plan = sps.plan(request, settings)
        return MECHANISM.run(given, request, settings, plan, SeededEntropy(0), lambda *_: None)

    shapes = stage_input_shapes(specification(settings, RunDescription.of(first), 1))
    given = {name: generator.standard_normal(size).astype(np.float32) for name, size in shapes.items()}
    later = replace(first, stage=1, stage_input=given)
    keeping = records.keeping(kept.LARGEST_QUOTA)
    answer(keeping, first)
    if keeping.kept is None or not _equal(answer(keeping, later), answer(records, later)):
        raise IntegrityError("a stage gave other sums with kept embeddings than without")

    def silo() -> None:
        answer(records.keeping(kept.LARGEST_QUOTA), first)

    works = silo, lambda: answer(records, later), lambda: answer(keeping, later)
    numbers = sps.plan(first, settings).coordinates

    def noise() -> None:
        discrete_gaussian.sample(discrete_gaussian.scale_for(SIGMA * FIXED_POINT_ONE), numbers, SeededEntropy(0))

    for work in (forward, silo, noise):
        work()
    times = [(_timed(forward), _timed(silo)) for _ in range(options.repeats)]
    ratio = statistics.median(both / plain for plain, both in times)
    rows = [
        ["plain forward pass", f"{options.records / statistics.median(t[0] for t in times):,.0f}"],
        ["silo's pass", f"{options.records / statistics.median(t[1] for t in times):,.0f}"],
    ]
    layers = f", statistics of all layers and {options.layers} by class" if options.layers else ""
    print(
        f"{options.backbone}{layers}, {options.records:,} records of shape {shape}, one thread, {options.repeats} turns"
    )
    print(table(["", "records per CPU second"], rows))
    print(f"ratio of CPU times: {ratio:.2f} (median over turns)")
    stages = [[_timed(work) for work in works] for _ in range(options.repeats)]
    middle = [statistics.median(each) for each in zip(*stages, strict=True)]
    names = ("first stage, embeddings kept", "second stage, computed again", "second stage, from what was kept")
    print(table(["", "CPU seconds"], [[name, f"{each:.2f}"] for name, each in zip(names, middle, strict=True)]))
    share = statistics.median(each[2] / each[0] for each in stages)
    print(f"second stage over first: {share:.3f} (median over turns)")
    apart = statistics.median(_timed(noise) for _ in range(options.repeats))
    print(f"noise for {numbers:,} numbers, once per release: {apart:.2f} CPU seconds")


def _equal(one: Privatised, other: Privatised) -> bool:
    return all(one.arrays[name].tobytes() == array.tobytes() for name, array in other.arrays.items())


def _timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
