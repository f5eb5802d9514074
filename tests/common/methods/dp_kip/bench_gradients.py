"""One `dp-kip` step on the paper's settings, beside a backward pass for each record of the same batch.

``python -m tests.common.methods.dp_kip.bench_gradients``

FC-NTK, 10 images per class, a batch of 500 records of 1x28x28, one thread. The step is all that a silo does: Poisson
sample, gradients, clipping in whole numbers, sum and discrete Gaussian noise. The loop makes each record's gradient by
automatic differentiation of its loss, clips it and adds it up, without noise: in single precision, and in double,
which a small ridge needs (a step inverts its kernel matrix in double). Seconds are processor time, medians of rounds in
turn, so that other work on the machine slows all alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from dpdd.client.mechanisms.dp_kip import MECHANISM
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.descent import labels_of, start
from dpdd.common.methods.dp_kip.kernels import FullyConnectedNTK, centred, predictions
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SystemEntropy
from dpdd.common.privacy.privatise import in_units
from dpdd.common.progress import silent
from dpdd.common.wire.request import ReleaseRequest

CLASSES, SHAPE, BATCH, ROUNDS = tuple("0123456789"), (1, 28, 28), 500, 5


def seconds(action: Callable[[], object]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin


def loop(images: torch.Tensor, labels: torch.Tensor, settings: GradientSettings, dtype: torch.dtype) -> torch.Tensor:
    """The sum of clipped gradients, one backward pass for each record."""
    run = RunDescription(CLASSES, SHAPE, 1)
    targets = centred(torch.from_numpy(labels_of(settings, run)), len(CLASSES)).to(dtype)
    wanted, kernel = centred(labels, len(CLASSES)).to(dtype), FullyConnectedNTK(settings.depth)
    support = torch.from_numpy(start(settings, run).copy()).to(dtype).requires_grad_(True)
    total = torch.zeros_like(support)
    for image, target in zip(images.to(dtype), wanted, strict=True):
        said = predictions(kernel, image[None], support, targets, settings.ridge)
        (gradient,) = torch.autograd.grad((said - target).square().sum(), support)
        total += gradient / gradient.norm().clamp_min(settings.clip)
    return total.detach()


def main() -> None:
    torch.set_num_threads(1)
    generator = np.random.Generator(np.random.PCG64(1))
    labels = np.arange(BATCH, dtype=np.int64) % len(CLASSES)
    images = generator.random((BATCH, *SHAPE)).astype(np.float32)
    settings = GradientSettings(steps=1, rate=1.0)  # all records, so that both sum over the same
    asked = ReleaseRequest("bench", "dp-kip", settings.on_wire(), math.inf, 1e-5, CLASSES, SHAPE, 1)
    plan = method("dp-kip").plan(asked, settings)
    records = Records(images, labels)
    private = replace(asked, epsilon=1.0)
    with_noise = method("dp-kip").plan(private, settings)
    times: dict[str, list[float]] = {"step": [], "float32": [], "float64": []}
    for _ in range(ROUNDS):
        times["step"] += [
            seconds(lambda: MECHANISM.run(records, private, settings, with_noise, SystemEntropy(), silent))
            for _ in range(5)
        ]
        for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
            times[name].append(
                seconds(lambda dtype=dtype: loop(torch.from_numpy(images), torch.from_numpy(labels), settings, dtype))
            )
    step, single, double = (statistics.median(each) for each in times.values())
    exact = loop(torch.from_numpy(images), torch.from_numpy(labels), settings, torch.float64).flatten().numpy()
    found = in_units(_clean(records, asked, settings, plan))
    wrong = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    print(f"batch {BATCH}, support set of {10 * len(CLASSES)} images of {SHAPE}, one thread ({torch.__version__})")
    print(f"one step, with noise                        {step:8.3f} s")
    print(f"a backward pass each, single precision      {single:8.3f} s   {single / step:5.1f} times as long")
    print(f"a backward pass each, double precision      {double:8.3f} s   {double / step:5.1f} times as long")
    print(f"the step's clean sum differs from the loop's in double precision by {100.0 * wrong:.2f} % of its norm")


def _clean(records: Records, asked: ReleaseRequest, settings: GradientSettings, plan: object) -> np.ndarray:
    from dpdd.common.methods.plan import Plan
    from dpdd.common.privacy.entropy import SeededEntropy

    assert isinstance(plan, Plan)
    return MECHANISM.run(records, asked, settings, plan, SeededEntropy(1), silent).arrays["gradient"][0]


if __name__ == "__main__":
    main()
