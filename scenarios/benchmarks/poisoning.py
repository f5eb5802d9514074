"""``dpdd-sim bench-poisoning``: what lying silos do to a run, by each rule of aggregation, and what is seen of them.

Simulated silos answer one SPS request; then some of them put lies in place of their sums, which are aggregated as in a
run. What is measured is the classifier in the sums (the teacher, which labels all images) on public test data, so
nothing has to be synthesised. All silos' noise is repeatable: this protects nobody.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.cli import Commands, table

if TYPE_CHECKING:
    from dpdd.common.synthesis.teacher import Teacher
    from dpdd.common.wire.release import Release
    from dpdd.server.run.requests import RequestGroup
    from dpdd.server.run.scenario import Scenario

Arrays = Mapping[str, NDArray]
SUMS, MATRIX, COUNT = "class-portrait", "portrait-moment", "count"
RULES = (("sum", "warn"), ("precision", "warn"), ("robust", "warn"), ("sum", "drop"), ("robust", "drop"))


def _scaled(factor: float, *names: str) -> Callable[[Arrays], Arrays]:
    def lie(arrays: Arrays) -> Arrays:
        return {
            name: np.rint(factor * array).astype(np.int64) if name in names else array for name, array in arrays.items()
        }

    return lie


def _rotated(arrays: Arrays) -> Arrays:
    """Every class's sums under the name of the next one: records with wrong labels."""
    return {**arrays, SUMS: np.roll(arrays[SUMS], 1, axis=0)}


def _loud(arrays: Arrays) -> Arrays:
    """Wrong labels, as loud as the norms allow: 4 times as many records, all of them alike."""
    mean = arrays[SUMS].mean(axis=0)
    return {
        **arrays,
        SUMS: np.rint(np.roll(3.0 * (arrays[SUMS] - mean), 1, axis=0) + 3.0 * mean).astype(np.int64),
        COUNT: 4 * arrays[COUNT],
    }


def _silent(arrays: Arrays) -> Arrays:
    """No records at all: what noise there is, without the sums under it."""
    generator = np.random.Generator(np.random.PCG64(1))
    matrix = arrays[MATRIX].reshape(len(arrays[SUMS][0]), -1)
    sigma = float(np.std(matrix - matrix.T) / np.sqrt(2.0))  # what is not symmetric is noise
    return {
        name: np.rint(sigma * generator.standard_normal(array.shape)).astype(np.int64) for name, array in arrays.items()
    }


ATTACKS: Mapping[str, tuple[int, Callable[[Arrays], Arrays]]] = {
    "nobody lies": (0, dict),
    "class sums x 1000": (1, _scaled(1000.0, SUMS)),
    "everything x 1000": (1, _scaled(1000.0, SUMS, MATRIX, COUNT)),
    "counts x 50": (1, _scaled(50.0, COUNT)),
    "class sums x -1": (1, _scaled(-1.0, SUMS)),
    "second moment x -1": (1, _scaled(-1.0, MATRIX)),
    "wrong labels": (1, _rotated),
    "wrong labels, loud": (1, _loud),
    "noise alone": (1, _silent),
    "two: wrong labels": (2, _rotated),
    "two: wrong labels, loud": (2, _loud),
}
"""How many silos lie, and what they send in place of their sums."""


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("bench-poisoning", _bench, "measure what lying silos do, by each rule of aggregation")
    parser.add_argument("--silos", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--records", type=int, default=1200, metavar="N", help="per silo (default: %(default)s)")
    parser.add_argument("--epsilon", type=float, default=1.0, help="of every silo (default: %(default)s)")
    parser.add_argument("--dirichlet", type=float, metavar="ALPHA", help="classes are shared out by such a draw")
    parser.add_argument("--attack", choices=tuple(ATTACKS), help="one only (default: all)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="with other noise (default: %(default)s)")


def _bench(options: argparse.Namespace) -> None:
    from dpdd.server.run.scenario import Scenario

    data: dict[str, object] = {"dataset": "fashion-slice", "silos": options.silos}
    if options.dirichlet:
        data |= {"partition": "dirichlet", "alpha": options.dirichlet}
    else:
        data["records_per_silo"] = options.records
    scenario = Scenario.model_validate(
        {"name": "poisoning", "data": data, "privacy": {"epsilon": options.epsilon}, "method": {"name": "sps"}}
    )
    attacks = {options.attack: ATTACKS[options.attack]} if options.attack else ATTACKS
    test = scenario.test_data()
    assert test is not None
    right: dict[tuple[str, tuple[str, str]], list[float]] = {}
    named: dict[str, list[str]] = {}
    embedded: NDArray[np.float32] | None = None
    for seed in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            group, releases = _releases(scenario, Path(folder), seed)
        for attack, (liars, lie) in attacks.items():
            sent = [*(forged(each, lie) for each in releases[:liars]), *releases[liars:]]
            for rule in RULES:
                teacher, found = _taught(scenario, group, sent, *rule)
                embedded = _embedded(teacher, test.images) if embedded is None else embedded
                answers = (embedded @ teacher.weights.T).argmax(1)
                right.setdefault((attack, rule), []).append(float((answers == test.labels).mean()))
                named.setdefault(attack, []).extend(found)
    print(
        f"teacher's accuracy in %, mean of {options.repeats}; fashion-slice, {options.silos} silos, "
        f"epsilon {options.epsilon:g}"
    )
    header = ["attack", "named", *(rule if outliers == "warn" else f"{rule}, drop" for rule, outliers in RULES)]
    rows = [
        [attack, _share(named[attack], ATTACKS[attack][0], options.repeats)]
        + [f"{100.0 * statistics.fmean(right[attack, rule]):.1f}" for rule in RULES]
        for attack in attacks
    ]
    print(table(header, rows))


def _share(named: Sequence[str], liars: int, repeats: int) -> str:
    """How many of those that lied were named, in all runs of all rules."""
    return f"{len(named) // len(RULES)} of {liars * repeats}"


def _releases(scenario: Scenario, folder: Path, seed: int) -> tuple[RequestGroup, list[Release]]:
    from dpdd.common.progress import Console
    from dpdd.common.wire.answer import SignedReleaseBytes
    from dpdd.common.wire.release import open_signed
    from dpdd.scenarios.simulator.silos import set_up
    from dpdd.server.run.requests import request_groups

    silos = set_up(scenario, folder, Console(quiet=True), noise_seed=seed)
    (group,) = request_groups(scenario, [silo.settings.name for silo in silos])
    releases = []
    for silo in silos:
        answer = silo.answer(group.request.encode())
        assert isinstance(answer, SignedReleaseBytes), answer
        releases.append(open_signed(answer.data))
    return group, releases


def forged(release: Release, lie: Callable[[Arrays], Arrays]) -> Release:
    """A release with other arrays, as whoever has the key can sign one."""
    from dpdd.common.wire.arrays import to_wire
    from dpdd.common.wire.release import decode_release
    from dpdd.v1 import release_pb2

    message = release_pb2.Release.FromString(release.encode())
    del message.arrays[:]
    message.arrays.extend(to_wire(name, array) for name, array in sorted(lie(release.arrays).items()))
    return decode_release(message.SerializeToString())


def _taught(
    scenario: Scenario, group: RequestGroup, releases: Sequence[Release], rule: str, outliers: str
) -> tuple[Teacher, list[str]]:
    """The teacher in the sums, and who was named."""
    from dpdd.common.methods.base import RunDescription
    from dpdd.common.methods.registry import method
    from dpdd.server.run.scenario import AggregationSection
    from dpdd.server.run.stage import Aggregation

    section = AggregationSection.model_validate({"rule": rule, "outliers": outliers})
    aggregation = Aggregation(scenario.model_copy(update={"aggregation": section}), lambda _: None, {})
    stage = aggregation.stage([group], sorted(releases, key=lambda each: each.silo))
    assert stage.statistics is not None
    request, chosen = group.request, method(group.request.method)
    settings, described = chosen.settings(request.settings), RunDescription.of(request)
    teacher = chosen.joint_teacher([stage.statistics], settings, [request.classes], described)
    assert teacher is not None
    return teacher, [each["silo"] for each in aggregation.findings]


def _embedded(teacher: Teacher, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What every teacher of these silos multiplies with its weights."""
    import torch

    itself = replace(teacher, weights=np.eye(teacher.weights.shape[1], dtype=np.float32))
    pixels = torch.from_numpy(images).float() / 255.0
    with torch.inference_mode():
        return torch.cat([itself.logits(part) for part in pixels.split(500)]).numpy()
