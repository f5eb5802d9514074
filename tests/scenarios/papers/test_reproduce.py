"""`dpdd-sim reproduce`: every cell is a valid scenario, runs are kept, releases are used again where they may be."""

from __future__ import annotations

import argparse
import math
import tomllib
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from dpdd.common.cli import Commands
from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.events import PoissonGaussian
from dpdd.scenarios.papers import cda as paper_cda
from dpdd.scenarios.papers import dosser as paper_dosser
from dpdd.scenarios.papers import dosser_auxiliary, kip_tables, reproduce
from dpdd.scenarios.papers import geng as paper_geng
from dpdd.scenarios.papers import kip as paper_kip
from dpdd.scenarios.papers.base import Cell, Outcome, Paper
from dpdd.scenarios.simulator import simulate
from dpdd.server.run.scenario import load_scenario

TINY = [
    *("--seeds=1", "--steps=2", "--width=4", "--quiet", "--rows", "dosser", "dosser-pea"),
    *("--images-per-class", "1", "2", "--synthesis", "steps=2"),
    *("--set", "draws=1", "networks=1", "width=4", "rate=1.0", "auxiliary_images=20", "dimensions=2"),
    *("--judge", "runs=1", "width=4", "steps=2"),
]


def command(*arguments: str) -> int:
    commands = Commands("dpdd-sim", "test")
    reproduce.add_to(commands)
    return commands.main(["reproduce", *arguments])


def options_of(paper: Paper, arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="fashion-slice")
    parser.add_argument("--seeds", type=int, default=1)
    paper.add_options(parser)
    return parser.parse_args(arguments)


def cells_of(paper: Paper, arguments: list[str]) -> list[Cell]:
    return paper.cells(options_of(paper, arguments))


@pytest.mark.parametrize(
    ("paper", "arguments", "count"),
    [
        ("sps", [], 8),
        ("dosser", [], 8),
        ("dosser", ["--epsilon", "1", "10", "--images-per-class", "10", "50"], 30),
        ("dosser", ["--tables", "3", "4", "5"], 9),
        ("dosser", ["--tables", "2", "4", "--rows", "dosser", "--images-per-class", "10", "50"], 8),
        ("kip", ["--tables", "made-patients"], 7),
        ("kip", ["--epsilon", "1", "inf", "--steps", "0"], 12),
        ("cda", [], 20),
        ("cda", ["--mode", "both", "--silos", "5", "--orders", "16", "--epsilon", "1", "--label-noise", "0.5"], 6),
        ("geng", [], 7),
        ("geng", ["--rows", "full", "--judges", "convnet-dd", "resnet18-dd", "--resnet", "width=16", "runs=1"], 1),
        ("geng", ["--epsilon", "1", "10", "--images-per-class", "10", "50", "--rows", "coupled", "shares-equal"], 8),
    ],
)
def test_every_cell_is_a_valid_scenario_of_its_own(
    tmp_path: Path, paper: str, arguments: list[str], count: int
) -> None:
    cells = cells_of(reproduce.PAPERS[paper], arguments)
    assert len(cells) == len({cell.key for cell in cells}) == count
    for cell in cells:
        path = tmp_path / "cell.toml"
        path.write_text(cell.scenario.replace("{seed}", "5"))
        assert load_scenario(str(path)).seed == 5


def test_cells_with_the_same_request_use_the_same_releases() -> None:
    cells = {
        cell.key: cell for cell in cells_of(paper_dosser, ["--epsilon", "1", "10", "--images-per-class", "10", "50"])
    }
    assert cells["dosser-1-10"].like == "" and cells["dosser-10-10"].like == ""
    assert cells["dosser-1-50"].like == cells["dosser-pea-1-10"].like == cells["dosser-pea-1-50"].like == "dosser-1-10"
    assert cells["dosser-pea-10-50"].like == "dosser-10-10" and cells["dm-inf-50"].like == "dm-inf-10"
    alone = cells_of(paper_dosser, ["--rows", "dosser-pea"])
    assert [cell.like for cell in alone] == [""]


def test_runs_are_kept_and_share_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"--out={tmp_path / 'runs'}"
    assert command("dosser", *TINY, out) == 0
    printed = capsys.readouterr().out
    releases = {
        key: [path.read_bytes() for path in (tmp_path / "runs").glob(f"{key}-0/silos/*/state/outbox/*.release")]
        for key in ("dosser-1-1", "dosser-1-2", "dosser-pea-1-1", "dosser-pea-1-2")
    }
    assert len(releases["dosser-1-1"]) == 1
    assert all(sent == releases["dosser-1-1"] for sent in releases.values())
    rows = [line.split() for line in printed.splitlines() if line.startswith("Dosser  ")]
    row = next(row for row in rows if len(row) == 8)
    assert row[1] == "1" and row[6] == f"{len(releases['dosser-1-1'][0]) / 1000:,.1f}"
    assert "81.6 ± 0.1" in printed and "6.7" in printed and "protects nobody" in printed

    def not_again(*_: Any, **__: Any) -> None:
        raise AssertionError("this was run before")

    monkeypatch.setattr(simulate, "run", not_again)
    assert command("dosser", *TINY, out) == 0
    assert capsys.readouterr().out == printed


def test_the_report_says_where_the_papers_epsilon_holds_and_where_not() -> None:
    rate, sigma, draws, noises = 0.01, 4.2969, 10_000, 20
    assert 0.8 < guarantee(PoissonGaussian(sigma, rate, draws), 1e-5).epsilon < 1.0  # the same noise at every visit
    redrawn = guarantee(PoissonGaussian(sigma / math.sqrt(noises), rate, draws), 1e-5).epsilon
    caveat = " ".join(paper_dosser.CAVEAT.split())
    assert f"{redrawn:.1f}" == "6.7" and "With one image per class or without augmentation" in caveat
    assert "the accounting stands" in caveat and "not 1" not in caveat
    assert all(word in caveat for word in ("enumerated", "fixed size", "class sizes are taken for public"))


def test_odd_settings_are_refused_in_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command("dosser", "--quiet", "--set", "draws", f"--out={tmp_path}") not in (0, 70)
    assert "KEY=VALUE" in capsys.readouterr().err


def test_dp_kips_tables_have_our_figures_in_cells_of_the_same_data_alone() -> None:
    options = options_of(
        paper_kip, ["--dataset", "cifar10", "--rows", "kip-moments", "--epsilon", "1", "inf", "--tables", "adult"]
    )
    outcomes = {
        cell.key: [Outcome({"krr": 0.0123 * number, "convnet": 0.5}, 1.0, 0, 0.0)]
        for number, cell in enumerate(paper_kip.cells(options), start=1)
    }
    means = {"": {"roc-auc-hard": 0.7331}, paper_kip.HERDED: {"roc-auc-hard": 0.7442, "f1": 0.1234}}
    outcomes["kip-table-adult"] = [Outcome({}, 1.0, 0, 0.0, means)]
    lines = list(paper_kip.report(options, outcomes))
    printed = "\n".join(lines)
    parts = printed.split("\nTable ")
    assert [part[0] for part in parts[1:]] == ["1", "2", "3", "3", "4", "5", "6"]
    by_row = [line.split() for line in parts[2].splitlines()]
    assert next(row for row in by_row if row[:2] == ["CIFAR-10", "10"])[2:5] == ["38.3", "±", "0.3"]
    ours = {tuple(row[:2]): row[-4:] for row in by_row if row and row[0] in kip_tables.DATASETS.values()}
    assert ours["CIFAR-10", "1"] == ["1.2", "–", "–", "–"] and ours["CIFAR-10", "10"][0] == "2.5"
    assert all(row == ["–"] * 4 for key, row in ours.items() if key not in {("CIFAR-10", "1"), ("CIFAR-10", "10")})
    assert next(line for line in parts[1].splitlines() if line.startswith("CIFAR-10  ")).split()[-1] == "3.7"
    assert "kip-moments" in parts[5] and "50.9 ± 0.4" in parts[5] and "54.9 ± 0.1" in parts[5] and "56.4" in parts[5]
    assert "0.733" in parts[6] and "0.744" in parts[6] and "0.123" in parts[6] and "0.662 0.365" in parts[6]


def test_every_cell_of_dp_kips_tables_is_there() -> None:
    keys = {(name, images) for name in kip_tables.DATASETS for images in (1, 10, 50)}
    assert kip_tables.TABLE_1.keys() == kip_tables.TABLE_2.keys() == keys
    assert {len(row) for row in kip_tables.TABLE_1.values()} == {len(kip_tables.KERNELS_1)}
    assert {len(row) for row in kip_tables.TABLE_5.values()} == {len(kip_tables.METHODS_5)}
    assert {len(rows) for rows in kip_tables.TABLE_4.values()} == {6}


@pytest.mark.usefixtures("few_test_records")
def test_dp_cda_has_the_honest_epsilon_beside_the_claimed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"fashion-mnist": paper_cda.TABLE_2["fashion-mnist"][2:7:4]}
    monkeypatch.setattr(paper_cda, "TABLE_2", few)
    options = ["--orders", "8", "--epsilon", "2", "--mixtures", "2", "--class-size", "100", "--steps=2", "--width=4"]
    assert command("cda", "--seeds=1", "--quiet", *options, f"--out={tmp_path / 'runs'}") == 0
    printed = capsys.readouterr().out
    sent = [list((tmp_path / "runs").glob(f"{key}-8-2-0/silos/*/state/outbox/*")) for key in ("mixtures", "records")]
    assert sent[0][0].read_bytes() == sent[1][0].read_bytes(), "both are made of the same release"
    rows = [line.split() for line in printed.splitlines()]
    order_4, order_64 = ([row for row in rows if row[:1] == [order]][-1] for order in ("4", "64"))
    assert "67.9 ± 0.6" in " ".join(order_4) and 0.3 < float(order_4[-1]) < 0.35
    assert "65.0 ± 0.7" in " ".join(order_64) and 3.4 < float(order_64[-1]) < 3.5


FIGURES = {"whole": 11.76, "limit": 9.93, "theirs": 12.9, "solved": 0.44, "by_class": 67.8}
"""What `geng.figures` computes in seconds (tests/common/methods/dp_geng/test_published.py)."""


def test_dossers_generators_have_the_part_of_the_budget_that_their_row_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dosser_auxiliary, "alone", lambda settings, _: (settings["auxiliary_share"], 0.875))
    options = options_of(
        paper_dosser, ["--tables", "3", "4", "5", "--set", "draws=7", "--images-per-class", "10", "50"]
    )
    cells = {cell.key: cell for cell in paper_dosser.cells(options)}
    shares = []
    for part in (0.1, 0.2, 0.3, 0.4, 0.5):
        cell = cells[f"split-{part:g}-1-10"]
        method = tomllib.loads(cell.scenario.replace("{seed}", "5"))["method"]["settings"]
        assert (method["auxiliary"], method["generator"], method["draws"]) == ("generated", "dp-merf", 7)
        assert cells[f"split-{part:g}-1-50"].like == cell.key
        shares.append(method["auxiliary_share"])
    assert shares[-1] == 0.5 and 0.01 < shares[0] < 0.02
    # μ of a Gaussian with 0.2 of ε and δ, beside one with 0.8: found here by hand
    small, large = (_mu(part, part * 1e-5) for part in (0.2, 0.8))
    assert shares[1] == pytest.approx(small**2 / (small**2 + large**2), abs=1e-4)
    outcomes = {key: [Outcome({"convnet-dd": 0.101 + 0.01 * number}, 1.0, 0, 0.0)] for number, key in enumerate(cells)}
    printed = "\n".join(paper_dosser.report(options, outcomes))
    rows = [" ".join(line.split()) for line in printed.splitlines()]
    assert rows.count("DP-MERF, 0.8 : 0.2 1 0.061 0.06 0.88 12.1 13.1") == 3, "it stands beside all three tables"
    assert "Private Evolution alone 1 – – – 26.1 27.1" in rows and "dead leaves, at no cost 1 – – – 22.1 23.1" in rows
    assert "Fashion-MNIST 80.1 83.1 59.7 63.6 60.2 65.1 61.1 64.9" in rows and "Matching on" not in printed
    exact = math.hypot(small, large)
    assert (
        f"compose to {_epsilon(exact):.2f} at ε = 1, not to 1" in printed.replace("\n", " ") and _epsilon(exact) < 0.95
    )


def test_what_generator_and_draws_cost_alone_makes_the_whole() -> None:
    """Where nobody is sampled all of it is one Gaussian, and squares of μ add up."""
    settings = {"auxiliary": "generated", "auxiliary_share": 0.2, "draws": 5, "rate": 1.0}
    mus = [_mu(cost, 1e-5) for cost in dosser_auxiliary.alone(settings, 1.0)]
    assert mus[0] ** 2 / (mus[0] ** 2 + mus[1] ** 2) == pytest.approx(0.2, rel=1e-3)
    assert _epsilon(math.hypot(*mus)) == pytest.approx(1.0, rel=1e-3)


def _mu(epsilon: float, delta: float) -> float:
    """Of the Gaussian that costs just this, by bisection on the formula."""
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _delta(middle, epsilon) < delta else (low, middle)
    return low


def _epsilon(mu: float) -> float:
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _delta(mu, middle) > 1e-5 else (low, middle)
    return high


def _delta(mu: float, epsilon: float) -> float:
    normal = NormalDist()
    return normal.cdf(mu / 2.0 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2.0 - epsilon / mu)


def test_dp_gengs_ablation_asks_as_seldom_as_it_can_and_stands_beside_the_paper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paper_geng, "figures", lambda: FIGURES)
    options = options_of(paper_geng, ["--dataset", "cifar10", "--epsilon", "10", "--images-per-class", "10", "50"])
    cells = {cell.key: cell for cell in paper_geng.cells(options)}
    assert cells["generated-10-10"].like == cells["advised-10-50"].like == "init-10-10"
    assert cells["init-fm-10-10"].like == "fm-10-10" and cells["full-10-50"].like == "full-10-10"
    assert cells["random-10-10"].like == cells["full-10-10"].like == ""
    for cell in cells.values():
        one, other = cells[cell.like or cell.key].scenario, cell.scenario
        assert one.partition("[synthesis]")[0] == other.partition("[synthesis]")[0], "asks the same"
    outcomes = {key: [Outcome({"convnet-dd": 0.301 + 0.01 * number}, 10.0, 0, 0.0)] for number, key in enumerate(cells)}
    printed = "\n".join(paper_geng.report(options, outcomes))
    rows = [" ".join(line.split()) for line in printed.splitlines()]
    assert "initialisation, matching, expert 65.5 ± 0.4 43.1" in rows and "initialisation 48.7 ± 0.4 31.1" in rows
    assert "10 0.27 1.48 1.30 65.5 ± 0.3 43.1" in rows and "10 1.21 1.17 1.17 57.2 ± 0.2 –" in rows
    assert "DP-GENG 10 59.0 ± 0.3 52.8 ± 0.4 49.5 ± 0.8 42.1" in rows
    assert "DP-MERF 56.4 ± 0.3 82.4 ± 0.2 43.1" in rows and "PE 65.5 ± 0.4 83.1 ± 0.5 –" in rows
    assert any(row.startswith("1 DP-GENG · 53.5 ± 0.3 55.9") and row.endswith("– – –") for row in rows)
    assert "ε of 11.8 by privacy-loss distributions" in printed and "limit says 9.9" in printed


def test_dp_gengs_figures_are_for_its_own_data_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_geng, "figures", lambda: FIGURES)
    options = options_of(paper_geng, ["--rows", "full", "--epsilon", "10", "--images-per-class", "50"])
    outcomes = {cell.key: [Outcome({"convnet-dd": 0.987}, 10.0, 0, 0.0)] for cell in paper_geng.cells(options)}
    assert "\n".join(paper_geng.report(options, outcomes)).count("98.7") == 1


def test_dp_gengs_table_6_has_the_same_set_by_every_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_geng, "figures", lambda: FIGURES)
    judges = ["convnet-dd", "resnet18-dd", "densenet121-dd"]
    arguments = ["--rows", "full", "--epsilon", "10", "--judges", *judges, "--resnet", "width=16", "runs=1"]
    accuracy = dict(zip(judges, (0.987, 0.876, 0.765), strict=True))
    for dataset, times in (("fashion-slice", 1), ("cifar10", 2)):
        options = options_of(paper_geng, ["--dataset", dataset, *arguments])
        [cell] = paper_geng.cells(options)
        assert "[evaluation.resnet18_dd]\nwidth = 16\nruns = 1" in cell.scenario
        printed = "\n".join(paper_geng.report(options, {cell.key: [Outcome(accuracy, 10.0, 0, 0.0)]}))
        assert "ResNet-18: width=16, runs=1; DenseNet-121: its defaults" in printed
        assert printed.count("87.6") == printed.count("76.5") == times
        row = next(line for line in printed.splitlines() if line.startswith("DP-GENG") and "59.0 ± 0.3  52.8" in line)
        assert row.split()[-3:] == (["98.7", "87.6", "76.5"] if dataset == "cifar10" else ["–"] * 3)
