"""`dpdd-sim baselines`: what it prints, and what it says of bad values."""

from __future__ import annotations

import json

import pytest

from dpdd.common.cli import Commands
from dpdd.scenarios.baselines import command, tables
from dpdd.server.evaluation.settings import EvaluationSection


def run(*arguments: str) -> int:
    commands = Commands("dpdd-sim", "test")
    command.add_to(commands)
    return commands.main(["baselines", *arguments])


def test_the_command_prints_what_each_row_costs(small_world: str, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--backbone", small_world, "--epsilon", "0.1", "--seeds", "2"]
    assert run(*shared, "--json", "--methods", "probe", "lda", "ridge") == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert err == "" and printed["releasable"] is False and printed["records"] == 600
    rows = {row["method"]: row for row in printed["rows"]}
    assert rows["probe"]["epsilon"] is None and rows["probe"]["accuracy"]["mean"] > 0.9
    for method in ("lda", "ridge"):
        assert 0.0999 < rows[method]["epsilon"] <= 0.1 and rows[method]["delta"] == 1e-5
        assert rows[method]["accountant"] == "analytic Gaussian"
        assert len(set(rows[method]["accuracy"]["runs"])) == 2, "seeds differ"

    assert run(*shared, "--methods", "lda") == 0
    out, err = capsys.readouterr()
    assert "±" in out and "one-shot DP-LDA" in out and "protects nobody" in out and "whitened" in out
    assert "features of the private records" in err
    assert run(*shared, "--methods", "lda", "--quiet", "--records", "30") == 0
    out, err = capsys.readouterr()
    assert err == "" and "30 records" in out


def test_rows_of_silos_say_whose_guarantee_it_is_and_how_to_repeat_them(
    small_world: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["--backbone", small_world, "--epsilon", "0.5", "--silos", "3", "--quiet", "--judge-width", "4"]
    assert run(*shared, "--methods", "fedpft", "real-subset", "--images-per-class", "2", "--no-flips") == 0
    out, err = capsys.readouterr()
    assert "in 3 silos (iid)" in out and "each one's" in out and err == ""
    (open_row,) = (line for line in out.splitlines() if line.startswith("some real records, ConvNet  "))
    assert "∞" in open_row and "not private" in open_row
    (again,) = (line for line in out.splitlines() if line.startswith("one-shot class Gaussians (FedPFT): "))
    assert run(*again.split("dpdd-sim baselines ")[1].split(), "--quiet", "--json") == 0
    repeated = json.loads(capsys.readouterr().out)
    assert repeated["silos"] == 3 and repeated["partition"] == "iid"
    (row,) = repeated["rows"]
    assert row["method"] == "fedpft" and f"{100 * row['accuracy']['mean']:.2f}" in out
    assert row["records_with"] == "each silo" and repeated["judge_width"] == 128
    assert row["command"] == again.split(": ", 1)[1] and "add or remove one" in row["neighbours"]


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--silos", "601"], "would have no record"),
        (["--silos", "2", "--partition", "dirichlet"], "alpha"),
        (["--dataset", "made-patients", "--methods", "dp-sgd"], "dp-sgd is for images"),
    ],
)
def test_what_does_not_fit_together_gets_one_sentence(
    small_world: str, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--backbone", small_world, "--quiet", *arguments) == 3
    out, err = capsys.readouterr()
    assert out == "" and complaint in err and "Traceback" not in err


def test_a_table_has_rows_of_its_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few = EvaluationSection(learners=("logistic-regression", "gaussian-nb"))
    usual = tables.run
    monkeypatch.setattr(tables, "run", lambda *arguments: usual(*arguments, settings=few))
    shared = ["--dataset", "made-patients", "--records", "300", "--silos", "2", "--quiet"]
    assert run(*shared, "--methods", "alone") == 0
    out, _ = capsys.readouterr()
    assert "made-patients, 300 records in 2 silos (iid)" in out and "worst" in out


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--epsilon", "0"], "above 0"),
        (["--epsilon", "40"], "up to 32"),
        (["--delta", "1"], "up to 0.01"),
        (["--seeds", "0"], "from 1 to"),
        (["--minutes", "-1"], "above 0"),
        (["--methods", "magic"], "invalid choice"),
        (["--records", "some"], "whole number"),
        (["--backbone", "no-such"], "no backbone"),
        (["--judge-width", "0"], "from 1 to"),
    ],
)
def test_bad_values_get_one_sentence(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = run(*arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert code in (2, 3) and out == "" and complaint in err and "Traceback" not in err
