"""`dpdd-sim baselines`: what it prints, and what it says of bad values."""

from __future__ import annotations

import json

import pytest

from dpdd.common.cli import Commands
from dpdd.scenarios.baselines import command


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
    ],
)
def test_bad_values_get_one_sentence(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = run(*arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert code in (2, 3) and out == "" and complaint in err and "Traceback" not in err
