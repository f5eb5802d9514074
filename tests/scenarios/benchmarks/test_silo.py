"""`dpdd-sim bench-silo`, called the way the command calls it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dpdd.common.cli import Commands
from dpdd.scenarios.benchmarks import silo as benchmark_silo


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_it_says_what_a_pass_costs_and_noise_apart(capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands("dpdd-sim", "test")
    benchmark_silo.add_to(commands)
    assert commands.main(["bench-silo", "--records", "70", "--repeats", "1", "--features", "16", "--layers", "1"]) == 0
    title, _, _, plain, silo, ratio, _, _, *stages, over, noise = capsys.readouterr().out.splitlines()
    assert title.startswith(
        "scatter28, statistics of all layers and 1 by class, 70 records of shape (1, 28, 28), one thread"
    )
    speeds = [float(line.split()[-1].replace(",", "")) for line in (plain, silo)]
    assert plain.startswith("plain forward pass") and silo.startswith("silo's pass") and min(speeds) > 0.0
    # The noise that is tried and the padding: the pass goes over 256 records beside the 70 of the plain one.
    assert float(ratio.removeprefix("ratio of CPU times: ").split()[0]) > 1.5
    assert [line.split(",")[0] for line in stages] == ["first stage", "second stage", "second stage"]
    assert 0.0 < float(over.removeprefix("second stage over first: ").split()[0]) < 1.0, "it goes over 128 records less"
    assert noise.startswith("noise for ") and noise.endswith(" CPU seconds")
