"""``dpdd-sim bench-evolution``: how good Private Evolution's population is after each round, and what votes are worth.

One curator holds some of a dataset's training records, and votes by the real mechanism; the images that would be kept
after each round are judged on other training records, which nobody votes with: so settings can be chosen here without
a look at test data. With ``--shuffled`` the same is done with votes that were shuffled within their classes.

The noise comes from a seed, so that this can be repeated: it protects nobody.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import Commands, table
from dpdd.common.config import validate
from dpdd.common.errors import ConfigError
from dpdd.scenarios.papers.base import add_judge, pairs

if TYPE_CHECKING:
    from dpdd.common.data.labelled_images import LabelledImages

NAME = "private-evolution"


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("bench-evolution", _bench, "judge Private Evolution's images after each round")
    parser.add_argument("--dataset", default="fashion-slice", help="whose training records vote")
    parser.add_argument("--records", type=int, default=10_000, metavar="N", help="that vote")
    parser.add_argument("--held-out", type=int, default=2000, metavar="N", help="other training records, to judge on")
    parser.add_argument("--epsilon", type=float, default=1.0, metavar="E", help="of all rounds together")
    parser.add_argument("--images-per-class", type=int, default=10, metavar="N", help="that are kept")
    parser.add_argument("--settings", nargs="+", default=[], metavar="KEY=VALUE", help="of Private Evolution")
    parser.add_argument("--shuffled", action="store_true", help="judge with shuffled votes, too")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything")
    add_judge(parser)


def _bench(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    print("\n".join(_report(options)))


def _report(options: argparse.Namespace) -> Iterator[str]:
    from dpdd.common.data import benchmarks
    from dpdd.common.randomness import uniforms

    whole = benchmarks.load(options.dataset, "train")
    order = uniforms(options.seed, "bench-evolution records", len(whole)).argsort(kind="stable")
    if options.records + options.held_out > len(whole):
        raise ConfigError(f"{options.dataset} has {len(whole)} training records, fewer than --records and --held-out")
    voters, held = whole.subset(order[: options.records]), whole.subset(order[-options.held_out :])
    yield (
        f"{options.dataset}: {options.records:,} training records vote, {options.held_out:,} others judge; "
        f"({options.epsilon:g}, 1e-5), {options.images_per_class} images per class, seed {options.seed}"
    )
    yield ""
    columns = [rounds(voters, held, options, shuffled=shuffled) for shuffled in (False, True)[: 1 + options.shuffled]]
    header = ["round", "members with votes, %", "accuracy, %", *(["with shuffled votes, %"] * options.shuffled)]
    lines = [
        [str(number + 1), f"{100.0 * of[0][0]:.0f}", *(f"{100.0 * accuracy:.1f}" for _, accuracy in of)]
        for number, of in enumerate(zip(*columns, strict=True))
    ]
    yield table(header, lines)
    yield ""
    yield "The noise came from a seed, so that this can be repeated: it protects nobody."


def rounds(
    voters: LabelledImages, held: LabelledImages, options: argparse.Namespace, *, shuffled: bool
) -> list[tuple[float, float]]:
    """After each round: the share of members whose votes stand out of the noise, and the accuracy of what is kept."""
    from dataclasses import replace

    import numpy as np

    from dpdd.client.mechanisms.private_evolution import MECHANISM
    from dpdd.client.records.records import Records
    from dpdd.common.methods.base import RunDescription
    from dpdd.common.methods.private_evolution import synthesis
    from dpdd.common.methods.private_evolution.settings import VOTES
    from dpdd.common.methods.registry import method
    from dpdd.common.models import backbone
    from dpdd.common.privacy.entropy import SeededEntropy
    from dpdd.common.progress import silent
    from dpdd.common.synthesis.statistics import Statistics, of_one_silo
    from dpdd.common.wire.request import ReleaseRequest
    from dpdd.server.evaluation.scoring import evaluate
    from dpdd.server.evaluation.settings import EvaluationSection

    chosen = method(NAME)
    described = RunDescription(voters.classes, voters.shape, options.seed, options.images_per_class)
    settings = chosen.resolve(chosen.settings(pairs(options.settings)), described, options.epsilon, 1e-5)
    names = chosen.backbones(settings)
    pinned = bytes.fromhex(backbone.load(names[0]).card.sha256) if names else b""
    described = replace(described, backbone_sha256=pinned)
    judge = validate(
        {"learners": ["convnet-dd"], "metrics": [], "convnet_dd": {"runs": 1, **pairs(options.judge)}},
        EvaluationSection,
        "the judge",
    )
    records = Records(voters.images, voters.labels)
    statistics: list[Statistics] = []
    judged: list[tuple[float, float]] = []
    state: Any = None
    asked_with: dict[str, Any] = {}
    for number in range(settings.rounds):
        request = ReleaseRequest(
            "bench",
            NAME,
            settings.on_wire(),
            options.epsilon,
            1e-5,
            voters.classes,
            voters.shape,
            options.seed,
            stage=number,
            stage_input=asked_with,
            backbone_sha256=pinned,
        )
        plan = chosen.plan(request, settings)
        noise = SeededEntropy(options.seed, f"bench-evolution {number}")
        answer = MECHANISM.run(records, request, settings, plan, noise, silent)
        votes = of_one_silo(answer.arrays, answer.event, asked_with)
        if shuffled:
            by_class = np.random.Generator(np.random.PCG64(options.seed + number))
            votes = replace(votes, sums={**votes.sums, VOTES: by_class.permuted(votes.sums[VOTES], axis=1)})
        statistics.append(votes)
        scores = evaluate(synthesis.generated(statistics, settings, described), held, judge, None, options.seed)
        share = float((synthesis.weights_of(votes, settings) > 0.0).mean())
        judged.append((share, float(scores["accuracy"]["convnet-dd"]["mean"])))
        state, later = synthesis.advance(state, votes, settings, described)
        asked_with = dict(later)
    return judged
