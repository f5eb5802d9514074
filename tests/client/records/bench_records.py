"""Peak memory, time and processor share of a silo's release, over ten times as many records.

``python -m tests.client.records.bench_records``

Folders of 96x96 colour images, half PNG and half JPEG (a few hundred different ones, under many names), are released by
a real silo with DP-MERF: policy, ledger, decoding, sums, noise, outbox. Each release is a process of its own; memory is
the peak of its resident set, imports included. As other work may run on the machine, two threads that only hash are
timed before and after each release: what they get is what two busy threads could have had.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
CLASSES = ("ant", "bee")
SIDE = 96
DIFFERENT = 300
BARE = 64


def make_images(folder: Path) -> list[Path]:
    """Different images that are neither flat nor noise: blurred noise, as PNG and JPEG in turn."""
    folder.mkdir()
    generator, paths = np.random.default_rng(0), []
    for number in range(DIFFERENT):
        coarse = Image.fromarray(generator.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        path = folder / f"{number}.{'png' if number % 2 else 'jpg'}"
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)
        paths.append(path)
    return paths


def make_silo(folder: Path, images: list[Path], count: int) -> None:
    """A silo with `count` records, each a link to one of the images."""
    for label in CLASSES:
        (folder / "images" / label).mkdir(parents=True)
    for number in range(count):
        image = images[number % len(images)]
        (folder / "images" / CLASSES[number % 2] / f"{number:06}{image.suffix}").hardlink_to(image)
    (folder / "silo.toml").write_text(
        f"""
name = "{folder.name}"
[data]
format = "image-folder"
path = "images"
classes = {json.dumps(CLASSES)}
shape = [3, {SIDE}, {SIDE}]
[budget]
epsilon = 1.0
delta = 1e-5
[policy]
methods = ["dp-merf"]
epsilon_per_request = 1.0
approval = "auto"
"""
    )


def available(seconds: float = 1.0) -> float:
    """How many processors two threads get that do nothing but hash, now."""
    data = bytes(1 << 20)
    started, cpu = time.perf_counter(), time.process_time()

    def hash_on(_number: int) -> None:
        while time.perf_counter() - started < seconds:
            hashlib.sha256(data).digest()  # releases the GIL

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(hash_on, range(2)))
    return (time.process_time() - cpu) / (time.perf_counter() - started)


def release(folder: Path, features: int) -> None:
    """In a process of its own: make one release, and say what it took."""
    from dpdd.client.silo import Silo
    from dpdd.common.wire.answer import SignedReleaseBytes
    from dpdd.common.wire.request import ReleaseRequest

    silo = Silo.initialise(folder)
    settings = {"features": features}
    request = ReleaseRequest("bench", "dp-merf", settings, 1.0, 1e-5, CLASSES, (3, SIDE, SIDE), public_seed=1)
    started, cpu = time.perf_counter(), time.process_time()
    assert isinstance(silo.answer(request.encode()), SignedReleaseBytes)
    seconds, busy = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "cpu": busy, "peak": peak}))


def measure(counts: list[int], features: int) -> list[dict[str, float]]:
    """One row for each number of records."""
    rows = []
    with tempfile.TemporaryDirectory() as base:
        images = make_images(Path(base) / "different")
        for count in counts:
            folder = Path(base) / f"silo-{count}"
            make_silo(folder, images, count)
            command = [sys.executable, "-m", "tests.client.records.bench_records", "--release", str(folder)]
            command += ["--features", str(features)]
            before = available()
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            rows.append({"records": count, "available": (before + available()) / 2, **json.loads(done.stdout)})
    return rows


def main() -> None:
    """Print a table, and how memory and time grow with the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs=3, default=[200, 2000, 20_000], help="the first shows fixed costs")
    parser.add_argument("--features", type=int, default=64, help="random features of DP-MERF")
    parser.add_argument("--release", type=Path)
    options = parser.parse_args()
    if options.release:
        return release(options.release, options.features)
    from dpdd.common.cli import table

    rows = measure(options.records, options.features)
    cells = [
        [
            f"{row['records']:.0f}",
            f"{row['peak']:.1f}",
            f"{row['seconds']:.2f}",
            f"{row['cpu']:.2f}",
            f"{1000 * row['cpu'] / row['records']:.3f}",
            f"{row['cpu'] / row['seconds']:.2f}",
            f"{row['available']:.2f}",
        ]
        for row in rows
    ]
    header = ["records", "peak MB", "seconds", "CPU s", "CPU ms/record", "processors busy", "two could have had"]
    print(table(header, cells))
    fixed, few, many = rows
    times = many["records"] / few["records"]
    print(f"{times:.0f} times the records take {many['peak'] / few['peak']:.3f} times the memory at its peak")
    for one, other in ((fixed, few), (few, many)):
        more = other["records"] - one["records"]
        seconds, cpu = (1000 * (other[each] - one[each]) / more for each in ("seconds", "cpu"))
        print(f"the next {more:.0f} records take {seconds:.3f} ms and {cpu:.3f} ms of CPU each")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"({len(os.sched_getaffinity(0))} processors, load {load} with whatever else runs here)")


if __name__ == "__main__":
    sys.exit(main())
