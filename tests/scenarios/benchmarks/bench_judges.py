"""One released set, several judges: ``python -m tests.scenarios.benchmarks.bench_judges runs/mine --dataset mnist``.

The learners `convnet` and `convnet-dd` on the same images and hard labels, for several widths; and `convnet` with the
augmentation of the other, which shows what the kind of augmentation alone is worth. Mean and deviation over networks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from dpdd.common.cli import table
from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.papers.base import pairs, spread
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.convnet import convnets
from dpdd.server.evaluation.convnet_dd import dd_convnets
from dpdd.server.evaluation.dsa import augment
from dpdd.server.evaluation.learner_settings import ConvNetDDSettings, LearnerSettings
from dpdd.server.evaluation.scoring import scores

JUDGES = {
    "convnet": "convnet: rotated, scaled, shifted, mirrored at once",
    "convnet-dsa": "convnet with one kind of change per batch (DSA)",
    "convnet-dd": "convnet-dd",
}


def networks(judge: str, dataset: LabelledSet, settings: LearnerSettings, console: Console) -> Sequence[Classifier]:
    """What this judge trains on the set."""
    if judge == "convnet-dd":
        return dd_convnets(dataset, settings, 0, console)
    if judge == "convnet":
        return convnets(dataset, settings, 0, console)
    generator = torch.Generator().manual_seed(0)
    altered = partial(augment, kinds=settings.convnet_dd.kinds(settings.flips), generator=generator)
    return convnets(dataset, settings, 0, console, augmentation=altered)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path, help="a folder with dataset/")
    parser.add_argument("--dataset", required=True, help="whose records test")
    parser.add_argument("--split", choices=("train", "test"), default="test")
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128], metavar="N")
    parser.add_argument("--judges", nargs="+", choices=JUDGES, default=list(JUDGES))
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="networks each")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="of convnet")
    parser.add_argument("--judge", nargs="+", default=[], metavar="KEY=VALUE", help="settings of convnet-dd")
    options = parser.parse_args()
    dataset, test = LabelledSet.load(options.run / "dataset"), benchmarks.load(options.dataset, options.split)
    console = Console()
    cells: dict[str, list[str]] = {judge: [] for judge in options.judges}
    for width in options.widths:
        given = {"width": width, "runs": options.runs, **pairs(options.judge)}
        own = ConvNetDDSettings.model_validate(given, strict=False)
        settings = LearnerSettings(
            runs=options.runs,
            width=width,
            steps=options.steps,
            labels="hard",
            flips=options.dataset != "mnist",
            convnet_dd=own,
        )
        for judge, row in cells.items():
            row += measured(judge, dataset, test, settings, console)
            console.say(f"width {width}, {judge}: {row[-2]} %, {row[-1]} s of CPU time")
    header = [text for width in options.widths for text in (f"W{width}", "CPU s")]
    print(f"{len(dataset)} images with hard labels, {options.runs} networks each, CPU seconds to train one:\n")
    print(table(["% right on real test data", *header], [[JUDGES[judge], *row] for judge, row in cells.items()]))


def measured(
    judge: str, dataset: LabelledSet, test: LabelledImages, settings: LearnerSettings, console: Console
) -> list[str]:
    """The accuracy, and the time for a network."""
    started = time.process_time()
    trained = networks(judge, dataset, settings, console)
    seconds = (time.process_time() - started) / len(trained)
    return [spread(scores(trained, test)["accuracy"].runs), f"{seconds:.0f}"]


if __name__ == "__main__":
    main()
