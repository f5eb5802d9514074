"""`dpdd-sim bench-matching`: the loops timed beside the engine compute the same, or the check would notice."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
import torch

from dpdd.common.cli import Commands
from dpdd.common.synthesis.siamese_augmentation import SiameseAugmentation
from dpdd.scenarios.benchmarks import matching as benchmark_matching
from dpdd.scenarios.benchmarks.matching_loops import Bench

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


@pytest.mark.parametrize("what", ["_augmentation", "_extractor", "_sample"])
def test_the_check_notices_another_view_network_or_sample(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    plain = getattr(Bench, what)
    others = {
        "_augmentation": lambda _self, _number: SiameseAugmentation(),
        "_extractor": lambda self, number, auxiliary: plain(self, number + 1, auxiliary),
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
    assert [line.split("  ")[0] for line in lines if line.startswith(("ours", "one "))] == [
        *("ours", "ours, subspace in double precision"),
        *("one class at a time", "one network, one class at a time"),
        *("ours", "one class at a time"),
    ]


def test_ratios_are_of_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(1.0, 2.0), (8.0, 5.0), (9.0, 9.0), (4.0, 6.0), (1.0, 2.0), (6.0, 8.0)])
    monkeypatch.setattr(benchmark_matching, "_timed", lambda _program: next(times))
    printed = benchmark_matching._rows({"ours": lambda: None, "theirs": lambda: None}, images=60, repeats=3)
    assert printed.splitlines()[2].split() == ["ours", "1.00", "60", "2.00"]
    assert printed.splitlines()[3].split() == ["theirs", "6.00", "10", "6.00", "6.0", "3.0"]
