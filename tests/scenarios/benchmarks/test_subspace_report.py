"""`dpdd-sim choose-dimensions`: measured errors are what theorem 1 says, and the report is whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from dpdd.common.cli import Commands
from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching import subspace
from dpdd.common.methods.matching.settings import MethodSettings
from dpdd.common.methods.matching.stages import resolve
from dpdd.common.methods.matching.subspace import Subspace
from dpdd.scenarios.benchmarks import subspace_errors, subspace_report
from tests.scenarios.small_images import stripes


def errors(values: torch.Tensor, space: Subspace, noise: float, rate: float, trials: int) -> float:
    labels = np.arange(len(values), dtype=np.int64) % 3
    train = LabelledImages(np.zeros((len(values), 1, 1, 1), np.uint8), labels, ("a", "b", "c"))
    generator = torch.Generator().manual_seed(0)
    return float(subspace_errors._errors(values, train, space, [noise], rate, trials, generator)[0])


def blobs(count: int = 300, width: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, width, generator=generator) * torch.linspace(2.0, 0.1, width) + 1.0


def test_nothing_is_lost_without_noise_clipping_sampling_and_projection() -> None:
    whole = Subspace(torch.zeros(6), torch.eye(6), 100.0, torch.zeros(6), torch.ones(6), 1.0)
    assert errors(blobs(), whole, noise=0.0, rate=1.0, trials=1) == pytest.approx(0.0, abs=1e-8)


def test_noise_adds_its_variance_in_every_coordinate() -> None:
    whole = Subspace(torch.zeros(6), torch.eye(6), 100.0, torch.zeros(6), torch.ones(6), 1.0)
    error = errors(blobs(), whole, noise=2.0, rate=1.0, trials=2000)
    assert error == pytest.approx(6 * (2.0 * 100.0 / 100) ** 2, rel=0.05)  # 100 records of each class


def test_what_is_outside_the_subspace_is_lost() -> None:
    values = blobs()
    space = subspace.fit(values.double(), 2, seed=0)
    wide = replace(space, clip=100.0)
    means = torch.stack([values[label::3].mean(dim=0) for label in range(3)]).double() - space.mean
    outside = means - means @ space.basis @ space.basis.T
    expected = float(outside.square().sum(dim=1).mean())
    assert errors(values, wide, noise=0.0, rate=1.0, trials=1) == pytest.approx(expected, rel=1e-3)


def test_sampling_and_clipping_cost_something() -> None:
    values = blobs()
    whole = Subspace(torch.zeros(6), torch.eye(6), 100.0, torch.zeros(6), torch.ones(6), 1.0)
    second = float(values.square().sum(dim=1).mean())
    error = errors(values, whole, noise=0.0, rate=0.5, trials=1000)
    assert error == pytest.approx(second * (1.0 - 0.5) / (0.5 * 100), rel=0.1)  # E|v|² (1 - q) / (q n)
    narrow = Subspace(torch.zeros(6), torch.eye(6), 0.5, torch.zeros(6), torch.ones(6), 1.0)
    assert errors(values, narrow, noise=0.0, rate=1.0, trials=1) > 1.0


def test_the_command_reports_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmarks, "load", lambda _name, _split: stripes(90, 0))
    commands = Commands("dpdd-sim", "test")
    subspace_report.add_to(commands)
    given = ["--width=8", "--auxiliary-images=30", "--records-per-class=30", "--draws=5", "--rate=1", "--trials=2"]
    picture = tmp_path / "curves.svg"
    command = ["choose-dimensions", "--quiet", *given, "--epsilon", "1", "30", "--svg", str(picture)]
    assert commands.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [
        line.split() for line in lines if line.split() and line.split()[0] in ("1", "30") and len(line.split()) == 6
    ]
    settings = MethodSettings(width=8, auxiliary_images=30, records_per_class=30, draws=5, rate=1.0, dimensions="auto")
    run = RunDescription(("a", "b", "c"), (1, 8, 8), 0)
    for row, epsilon in zip(rows, (1.0, 30.0), strict=True):
        chosen = resolve(settings, run, epsilon, 1e-5)
        assert int(row[2]) == chosen.dimensions
        assert float(row[5]) <= float(row[3])  # nothing is measured to be better than the best
    assert any("no silo would publish" in line for line in lines)
    drawn = ElementTree.parse(picture).getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 6


def test_odd_options_are_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands("dpdd-sim", "test")
    subspace_report.add_to(commands)
    for options, word in ((["--epsilon", "100"], "epsilon"), (["--rate", "2"], "rate")):
        assert commands.main(["choose-dimensions", "--quiet", *options]) not in (0, 70)
        assert word in capsys.readouterr().err
