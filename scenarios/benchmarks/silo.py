"""``dpdd-sim bench-silo``: what a silo's pass over its records costs beside a plain forward pass of the backbone.

Both are timed in turns in one process, in batches of the same size and on one thread, as CPU time. The silo's pass has
all that a release does to its records, the batches of noise included that each release tries first. Noise is drawn once
per release whatever the number of records, so it is timed apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from dpdd.common.cli import Commands, table

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


def _bench(options: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from dpdd.client.mechanisms.base import BATCH
    from dpdd.client.mechanisms.sps import MECHANISM
    from dpdd.client.records.records import Records
    from dpdd.common.methods.registry import method as method_called
    from dpdd.common.methods.sps.settings import MethodSettings
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

    def silo() -> None:
        plan = method_called("sps").plan(first, settings)
        MECHANISM.run(records, first, settings, plan, SeededEntropy(0), lambda *_: None)

    numbers = method_called("sps").plan(first, settings).coordinates

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
    apart = statistics.median(_timed(noise) for _ in range(options.repeats))
    print(f"noise for {numbers:,} numbers, once per release: {apart:.2f} CPU seconds")


def _timed(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
