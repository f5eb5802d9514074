"""What of DP-KIP's accuracy the noise takes, and what the start: MNIST, judged on training records that are held out.

``python -m tests.client.mechanisms.measure_dp_kip_gaps [--method dp-kip] [--start noise]``

The settings are those of `dpdd-sim run dp-kip-mnist` (or `dp-kip-features-mnist`), 10 images per class; 10,000 training
records are held out, and 5,000 of them judge. Each row is one run: at ε = 1 or without noise, from noise or from
the first ten real images of each class. A start from real images is not private, whatever the noise: it is here to
show what it is worth. "before" is the start itself, "after" the mean of the last ten support sets, stored as bytes.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpdd.client import local_synthesis
from dpdd.client.mechanisms import dp_kip as private_half
from dpdd.client.records.records import Records
from dpdd.common.data import benchmarks
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip import descent
from dpdd.common.methods.dp_kip.features import input_size, inputs_of, kernel_of, network_of
from dpdd.common.methods.dp_kip.kernels import centred, coefficients
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.synthesis.distilled_set import DistilledSetSettings
from dpdd.common.wire.request import Kind, ReleaseRequest

SETTINGS: dict[str, dict[str, Any]] = {
    "dp-kip": {"steps": 100, "rate": 0.02, "learning_rate": 0.02},
    "dp-kip-features": {"steps": 40, "rate": 0.02, "learning_rate": 0.05},
}
HELD_OUT, JUDGES, PER_CLASS = 10_000, 5_000, 10
Start = Callable[[GradientSettings, RunDescription], NDArray[np.float32]]


def split() -> tuple[Any, Any, Any, Any, tuple[str, ...]]:
    train = benchmarks.load("mnist", "train")
    images, labels = np.asarray(train.images), np.asarray(train.labels).astype(np.int64)
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(images))
    kept, judges = order[HELD_OUT:], order[:JUDGES]
    return images[kept], labels[kept], images[judges], labels[judges], train.classes


def accuracy(
    pixels: NDArray[np.uint8], settings: GradientSettings, run: RunDescription, images: NDArray, labels: NDArray
) -> float:
    """Of kernel ridge regression with the kernel that the set was made with."""
    kernel, network = kernel_of(settings), network_of(settings, run)
    size = input_size(settings, run)

    def seen(some: NDArray[np.uint8]) -> torch.Tensor:
        return inputs_of(network, torch.from_numpy(some.astype(np.float32) / 255.0)).double()

    def gram(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return kernel.of_products(x @ z.T, x.square().sum(1)[:, None], z.square().sum(1), size)

    with torch.inference_mode():
        support = seen(pixels)
        targets = centred(torch.from_numpy(descent.labels_of(settings, run)), len(run.classes)).double()
        dual = coefficients(gram(support, support), targets, settings.ridge)
        right = [
            (gram(seen(images[part]), support) @ dual).argmax(1).numpy() == labels[part]
            for part in np.array_split(np.arange(len(images)), 10)
        ]
    return 100.0 * float(np.concatenate(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=list(SETTINGS), default="dp-kip")
    parser.add_argument("--start", choices=("noise", "real", "both"), default="both")
    arguments = parser.parse_args()
    name = arguments.method
    torch.set_num_threads(1)
    images, labels, judging, right, classes = split()
    chosen, run = method(name), RunDescription(classes, images.shape[1:], 1, PER_CLASS)
    settings = chosen.resolve(chosen.settings(SETTINGS[name]), run, 1.0, 1e-5)
    first = np.concatenate([np.flatnonzero(labels == number)[:PER_CLASS] for number in range(len(classes))])
    starts: dict[str, Start] = {
        "noise": descent.start,
        "real images (not private)": lambda _settings, _run: images[first].astype(np.float32) / 255.0,
    }
    print(f"{name}, {SETTINGS[name]}, {len(images):,} records, {JUDGES:,} held out; accuracy of KRR, %")
    print(f"{'start':27}{'ε':>5}{'σ':>8}{'before':>9}{'after':>8}{'CPU s':>8}")
    for title, start in starts.items():
        if arguments.start != "both" and not title.startswith(arguments.start):
            continue
        for epsilon in (1.0, math.inf):
            begin = time.process_time()
            wanted = DistilledSetSettings(
                method=settings.on_wire(), synthesis={"average_last": 10}, images_per_class=PER_CLASS
            )
            request = ReleaseRequest(
                "gaps", name, wanted.on_wire(), epsilon, 1e-5, classes, run.shape, 1, kind=Kind.DISTILLED_SET
            )
            with pytest.MonkeyPatch.context() as patch:
                for module in (descent, private_half):
                    patch.setattr(module, "start", start)
                before = np.rint(255.0 * start(settings, run)).astype(np.uint8)
                answered = local_synthesis.run_stages(
                    Records(images, labels), request, chosen, settings, SeededEntropy(1), silent
                )
                arrays = local_synthesis.synthesise_locally(answered, request, chosen, settings, silent).arrays
            sigma = getattr(answered[0][1].event, "sigma", 0.0)
            figures = (accuracy(each, settings, run, judging, right) for each in (before, arrays["images"]))
            print(
                f"{title:27}{epsilon:>5}{sigma:>8.3f}{next(figures):>9.1f}{next(figures):>8.1f}"
                f"{time.process_time() - begin:>8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
