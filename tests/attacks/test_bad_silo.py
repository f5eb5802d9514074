"""One bad silo of three, with a real key, sends what cannot be used: the others' run goes on, and it is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client.app import make_app
from dpdd.client.silo import Silo
from dpdd.common import flower
from dpdd.common.errors import DpddError
from dpdd.common.progress import Console
from dpdd.common.wire.answer import SignedReleaseBytes, decode_answer, encode_answer
from dpdd.common.wire.release import Release, open_signed, sign
from dpdd.scenarios.simulator.inprocess import InProcessGrid
from dpdd.scenarios.simulator.silos import set_up
from dpdd.server.cli import main as server
from dpdd.server.run.pipeline import Run
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import load_scenario

SCENARIO = """
name = "one-bad-silo"
[data]
dataset = "fashion-slice"
silos = 3
records_per_silo = {records}
[privacy]
epsilon = {epsilon}
[method]
name = "dp-merf"
mode = "{mode}"
[method.settings]
features = 50
[synthesis]
images_per_class = 3
[synthesis.settings]
steps = 3
batch = 10
[evaluation]
runs = 0
[exchange]
quorum = {quorum}
"""

Forgery = Callable[[Release], Release]


class Grid(InProcessGrid):
    """A grid in which the silo `bad` signs something else than it should."""

    bad = "east"
    forgery: Forgery

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
        for reply in super().send_and_receive(messages, timeout=timeout):
            folder = self._silos[reply.metadata.src_node_id]
            if folder.name == self.bad:
                answer = decode_answer(flower.unpack(reply.content, "dpdd.v1.Answer"))
                assert isinstance(answer, SignedReleaseBytes), answer
                forged = sign(self.forgery(open_signed(answer.data)), Silo(folder)._key)
                reply.content = flower.pack(encode_answer(SignedReleaseBytes(forged)), "dpdd.v1.Answer")
            yield reply


def prepared(
    folder: Path,
    forgery: Forgery,
    *,
    mode: str = "centralised",
    quorum: int = 1,
    records: int = 700,
    epsilon: float = 8.0,
    more: str = "",
) -> tuple[Run, Grid]:
    folder.mkdir(exist_ok=True)
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(mode=mode, quorum=quorum, records=records, epsilon=epsilon) + more)
    scenario = load_scenario(str(path))
    silos = set_up(scenario, folder / "run", Console(quiet=True), noise_seed=1)
    grid = Grid.of(make_app(), [silo.folder for silo in silos])
    assert isinstance(grid, Grid)
    grid.forgery = forgery
    roster = Roster({silo.settings.name: silo.public_key for silo in silos})
    return Run(scenario, folder / "run", roster, Console(quiet=True), rehearsal=None), grid


def with_arrays(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Forgery:
    return lambda release: altered(release, arrays=change(dict(release.arrays)))


def altered(release: Release, **changes: Any) -> Release:
    """A copy that says something else: no honest program can make one."""
    forged = copy.copy(release)
    for name, value in changes.items():
        object.__setattr__(forged, name, value)
    return forged


def first(arrays: dict[str, Any]) -> str:
    return min(arrays)


STATISTICS = {
    "an array is missing": with_arrays(lambda arrays: {name: arrays[name] for name in arrays if name != first(arrays)}),
    "another shape": with_arrays(lambda arrays: {**arrays, first(arrays): arrays[first(arrays)][:1]}),
    "floats": with_arrays(lambda arrays: {name: np.full(each.shape, np.nan) for name, each in arrays.items()}),
    "too large to add up": with_arrays(
        lambda arrays: {**arrays, first(arrays): np.full_like(arrays[first(arrays)], (1 << 63) - 1, dtype=np.int64)}
    ),
    "the smallest integer": with_arrays(
        lambda arrays: {**arrays, first(arrays): np.full_like(arrays[first(arrays)], -(1 << 63), dtype=np.int64)}
    ),
    "counts of other classes": lambda release: altered(release, public_counts=(1, 2, 3)),
}

SETS = {
    "no images": with_arrays(lambda arrays: {name: arrays[name] for name in arrays if name != "images"}),
    "labels of no class": with_arrays(lambda arrays: {**arrays, "labels": arrays["labels"] + 1000}),
    "more than was asked for": with_arrays(
        lambda arrays: {name: np.concatenate([each] * 9) if len(each) else each for name, each in arrays.items()}
    ),
}


@pytest.mark.parametrize("forgery", STATISTICS.values(), ids=STATISTICS)
def test_a_run_goes_on_without_a_silo_whose_statistics_cannot_be_used(forgery: Forgery, tmp_path: Path) -> None:
    goes_on_without_it(*prepared(tmp_path, forgery), tmp_path / "run")


@pytest.mark.parametrize("forgery", SETS.values(), ids=SETS)
def test_a_run_goes_on_without_a_silo_whose_set_cannot_be_used(forgery: Forgery, tmp_path: Path) -> None:
    goes_on_without_it(*prepared(tmp_path, forgery, mode="decentralised"), tmp_path / "run")


def goes_on_without_it(run: Run, grid: Grid, folder: Path) -> None:
    run.execute(grid)
    card = json.loads((folder / "card.json").read_text())
    assert {row["silo"] for row in card["silos"]} == {"north", "south"}
    assert "unusable" in card["silos_without_release"][grid.bad]
    assert grid.bad in (folder / "CARD.md").read_text()
    assert server(["verify", str(folder)]) == 0


def test_fewer_usable_releases_than_the_quorum_are_not_enough(tmp_path: Path) -> None:
    run, grid = prepared(tmp_path, STATISTICS["another shape"], quorum=3)
    with pytest.raises(DpddError, match=r"2 of 3 releases can be used, and the quorum is 3 \(east: sent"):
        run.execute(grid)
    assert not (tmp_path / "run" / "dataset").exists()
