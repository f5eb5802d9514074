"""How long `kip-moments` takes from releases to the finished set: the settings of `dpdd-sim run kip-cifar10`, one core.

``python -m tests.common.methods.dp_kip.bench_moments [--images-per-class 10] [--steps 300]``

The silo has few records, as what follows a release does not depend on how many there were; so the set itself is worth
little. Time is that of the processor, beside that of the clock, which others on the machine lengthen.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from dpdd.client import local_synthesis
from dpdd.client.records.records import Records
from dpdd.common.data import benchmarks
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.synthesis.distilled_set import DistilledSetSettings
from dpdd.common.wire.request import Kind, ReleaseRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images-per-class", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--records", type=int, default=500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train, chosen = benchmarks.load("cifar10", "train"), method("kip-moments")
    images = np.asarray(train.images[: arguments.records])
    labels = np.asarray(train.labels[: arguments.records]).astype(np.int64)
    run = RunDescription(train.classes, images.shape[1:], 1, arguments.images_per_class)
    settings = chosen.resolve(chosen.settings({"picture": 4, "stages": 10}), run, 1.0, 1e-5)
    synthesis = {"average_last_stages": 6, "steps": arguments.steps}
    wanted = DistilledSetSettings(
        method=settings.on_wire(), synthesis=synthesis, images_per_class=arguments.images_per_class
    )
    request = ReleaseRequest(
        "bench", "kip-moments", wanted.on_wire(), 1.0, 1e-5, train.classes, run.shape, 1, kind=Kind.DISTILLED_SET
    )
    answered = local_synthesis.run_stages(Records(images, labels), request, chosen, settings, SeededEntropy(1), silent)
    begin, clock = time.process_time(), time.perf_counter()
    local_synthesis.synthesise_locally(answered, request, chosen, settings, silent)
    print(
        f"CIFAR-10, {arguments.images_per_class} images per class, {arguments.steps} steps, from the releases of "
        f"{settings.stages} stages: {time.process_time() - begin:.0f} s of one core ({time.perf_counter() - clock:.0f} "
        f"s on the clock), {torch.get_num_threads()} thread"
    )


if __name__ == "__main__":
    main()
