"""What to make of a public pool: ``python -m tests.server.pool.bench_pool FOLDER --sets selected-50 pool-600``.

Settings are chosen here on held-out **training** records of CIFAR-10, never on its test set: 5,000 judge, and logistic
regression on the embeddings of 12,000 others, without noise, stands in for the classifier that releases contain (it is
about as good). The pool is a sample of Tiny-ImageNet. FOLDER keeps embeddings and every row that is done.

`selected-IPC`, `selected-IPC-PARTS`, `distilled-IPC`, `distilled-IPC-PARTS` are judged by `convnet-dd`; `pool-STEPS` is
`convnet-pool` with so many steps. All networks have `--width`; one run each.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from dpdd.common.cli import table
from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.methods.base import RunDescription
from dpdd.common.models import backbone as backbones
from dpdd.common.progress import silent
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.public_pool import PoolFacts
from dpdd.common.synthesis.teacher import Teacher
from dpdd.server.evaluation.convnet_dd import dd_convnets
from dpdd.server.evaluation.convnet_pool import pool_convnets
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.scoring import scores
from dpdd.server.pool.making import ScoredPool, labelled, scored, small_set
from dpdd.server.pool.section import PoolSection

HELD_OUT, LEARNT = 5_000, 12_000
BACKBONE, EMBEDDING = "rgb32", ImageEmbedding(features=320, side=4, channels=3)


def blank_teacher(classes: int) -> Teacher:
    """One that has learnt nothing yet."""
    weights = np.zeros((classes, EMBEDDING.dimensions), np.float32)
    return Teacher(weights, BACKBONE, backbones.load(BACKBONE).card.sha256, EMBEDDING)


def regression(vectors: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Weights of logistic regression."""
    inputs, wanted = torch.from_numpy(vectors), torch.from_numpy(labels)
    weights = torch.zeros(classes, inputs.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        found = functional.cross_entropy(inputs @ weights.T, wanted) + 3e-5 * weights.square().sum()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimiser.step(loss)  # type: ignore[no-untyped-call, arg-type]
    return weights.detach().numpy()


def prepared(folder: Path, images: int) -> tuple[ScoredPool, LabelledImages, float]:
    """The pool with its labels, the records that judge, and how often the classifier is right about these."""
    train, public = benchmarks.load("cifar10", "train"), benchmarks.load("tinyimagenet32", "train").images
    order = np.random.default_rng(7).permutation(len(train))
    judges, known = train.subset(order[:HELD_OUT]), train.subset(order[HELD_OUT : HELD_OUT + LEARNT])
    pool = public[np.sort(np.random.default_rng(3).permutation(len(public))[:images])]
    blank, kept = blank_teacher(len(train.classes)), folder / f"vectors-{images}.npz"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        parts = {"pool": pool, "known": known.images, "judges": judges.images}
        np.savez(kept, **{name: scored(part, blank, silent).vectors for name, part in parts.items()})
    vectors = np.load(kept)
    teacher = Teacher(
        regression(vectors["known"], known.labels, len(train.classes)), BACKBONE, blank.backbone_sha256, EMBEDDING
    )
    right = float(((vectors["judges"] @ teacher.weights.T).argmax(axis=1) == judges.labels).mean())
    soft = torch.softmax(torch.from_numpy(vectors["pool"] @ teacher.weights.T), 1).numpy()
    return ScoredPool(pool, vectors["pool"], soft, teacher), judges, right


def accuracy(
    pool: ScoredPool, judges: LabelledImages, name: str, width: int, distillation: dict[str, object], candidates: int
) -> tuple[float, int]:
    """Of one row, and how many images were learnt from."""
    kind, first, *parts = name.split("-")
    section = PoolSection.model_validate(
        {
            "dataset": "tinyimagenet32",
            "licence": "see the card",
            "set": kind if kind != "pool" else "selected",
            "parts": int(parts[0]) if parts else 1,
            "candidates": candidates,
            "distillation": distillation,
        }
    )
    judge = {"runs": 1, "width": width}
    run = RunDescription(judges.classes, judges.shape, 0, images_per_class=int(first))
    if kind == "pool":
        facts = PoolFacts("tinyimagenet32", section.licence, judges.classes, judges.shape)
        few = LabelledSet(pool.images[:1], np.zeros(1, np.int64), judges.classes)
        dataset = LabelledSet(few.images, few.labels, few.classes, pool=labelled(pool, section, facts, 0))
        settings = LearnerSettings.model_validate({"convnet_pool": {**judge, "steps": int(first)}})
        classifiers, count = pool_convnets(dataset, settings, 0), len(pool.images)
    else:
        dataset = small_set(pool, section, run)
        settings = LearnerSettings.model_validate({"convnet_dd": judge})
        classifiers, count = dd_convnets(dataset, settings, 0), len(dataset)
    return scores(classifiers, judges)["accuracy"].mean, count


def main() -> None:
    """Print the table of all rows that are done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="keeps what is done")
    parser.add_argument("--sets", nargs="*", default=[], metavar="NAME", help="rows to add")
    parser.add_argument("--images", type=int, default=22_000, metavar="N", help="in the pool")
    parser.add_argument("--width", type=int, default=32, metavar="N", help="of all networks")
    parser.add_argument("--candidates", type=int, default=10, metavar="N", help="the section's")
    parser.add_argument("--distillation", type=json.loads, default={}, metavar="JSON", help="the section's")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pool, judges, right = prepared(options.folder, options.images)
    kept = options.folder / "rows.json"
    for name in options.sets:
        started = time.process_time()
        found, count = accuracy(pool, judges, name, options.width, options.distillation, options.candidates)
        settings = (
            json.dumps(options.distillation) if name.startswith("distilled") else f"of {options.candidates} times"
        )
        settings = "" if name.startswith("pool") else settings
        seconds = f"{time.process_time() - started:.0f}"
        rows = json.loads(kept.read_text()) if kept.exists() else []  # another process may have added some
        rows.append([name, settings, str(count), str(options.width), f"{100 * found:.1f}", seconds])
        kept.write_text(json.dumps(rows))
    rows = json.loads(kept.read_text()) if kept.exists() else []
    print(f"{len(pool.images)} public images; the classifier is right about {100 * right:.1f} % of held-out records\n")
    print(table(["set", "settings", "images", "width", "% right, held out", "CPU seconds"], rows))


if __name__ == "__main__":
    main()
