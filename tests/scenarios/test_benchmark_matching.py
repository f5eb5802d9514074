"""`dpdd-sim bench-matching`: the loops timed beside the engine compute the same, or the check would notice."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
import torch

from dpdd.common.cli import Commands
from dpdd.common.synthesis.warp import Warp
from dpdd.scenarios import benchmark_matching
from dpdd.scenarios.matching_loops import Bench

TINY = {
    "dataset": "fashion-slice",
    "rate": 0.002,
    "draws": 3,
    "networks": 2,
    "width": 4,
    "dimensions": 3,
    "auxiliary_images": 20,
    "images_per_class": 2,
    "steps": 2,
}


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def bench(**changes: object) -> Bench:
    return Bench.of(argparse.Namespace(**{**TINY, **changes}))


@pytest.mark.parametrize("changes", [{}, {"networks": 0, "dimensions": 0}, {"rate": 0.0001}])
def test_plain_loops_and_engine_agree(changes: dict[str, object]) -> None:
    bench(**changes).check()  # with the last, most classes have nobody in a draw


@pytest.mark.parametrize("what", ["_warp", "_lens", "_sample"])
def test_the_check_notices_another_view_network_or_sample(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    plain = getattr(Bench, what)
    others = {
        "_warp": lambda _self, _number: Warp(),
        "_lens": lambda self, number, auxiliary: plain(self, number + 1, auxiliary),
        "_sample": lambda self, entropy: plain(self, entropy)[1:],
    }
    monkeypatch.setattr(Bench, what, others[what])
    with pytest.raises(AssertionError):
        bench().check()


def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands("dpdd-sim", "test")
    benchmark_matching.add_to(commands)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    assert commands.main(["bench-matching", *options, "--repeats=1", "--threads=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "sums and gradients agree" in lines
    ours = [line.split() for line in lines if line.startswith("ours")]
    theirs = [line.split() for line in lines if line.startswith("one class at a time")]
    assert len(ours) == len(theirs) == 2 and any(line.startswith("one network, one class") for line in lines)
    for mine, other in zip(ours, theirs, strict=True):
        assert len(other) == len(mine) + 6  # four words more in its name, and two ratios
        assert float(other[-2]) == pytest.approx(float(other[5]) / float(mine[1]), rel=0.5)
