"""`dpdd-sim bench-synthesis`, called the way the command calls it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dpdd.common.cli import Commands
from dpdd.scenarios.benchmarks import synthesis as benchmark_synthesis


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("settings", [["features=16"], ["features=16", "class_layers=1", "class_dimensions=8"]])
def test_it_says_what_a_step_costs_and_what_takes_the_time(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands("dpdd-sim", "test")
    benchmark_synthesis.add_to(commands)
    small = ["--steps", "1", "--backbone", "gray28", "--synthesis", "batch_per_class=2"]
    assert commands.main(["bench-synthesis", *small, "--settings", *settings]) == 0
    title, _, _, step, plain, *parts, ratio = capsys.readouterr().out.splitlines()
    assert title == "sps on gray28, 20 images a step, one thread, 1 turns" and len(parts) == 4
    assert step.startswith("a step of the synthesis") and plain.startswith("plain pass")
    assert float(ratio.removeprefix("ratio of a step to the plain pass: ").split()[0]) > 0.5
