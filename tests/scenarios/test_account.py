"""`dpdd-sim account` and `dpdd-sim bench-noise`, called the way the command calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from dpdd.common.cli import Commands
from dpdd.common.privacy.accounting import gaussian_delta, guarantee
from dpdd.common.privacy.events import NEIGHBOURS, Gaussian, PoissonGaussian
from dpdd.scenarios import account
from dpdd.scenarios.benchmarks import noise as benchmark_noise

SAMPLED = ["--rate", "50/6000", "--steps", "2000"]


def run(*arguments: str) -> int:
    commands = Commands("dpdd-sim", "test")
    account.add_to(commands)
    benchmark_noise.add_to(commands)
    return commands.main(arguments)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run("account", *arguments, "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    figures: dict[str, Any] = json.loads(out)
    return figures


def test_noise_for_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    figures = answer(capsys, "gaussian", "--epsilon", "1", "--delta", "1e-5", "--releases", "3")
    sigma, renyi = figures.pop("sigma"), figures.pop("sigma_rdp")
    assert sigma == pytest.approx(6.4616, abs=1e-3) and renyi == pytest.approx(7.007, abs=1e-3)
    assert gaussian_delta(3**0.5 / sigma, 1.0) <= 1e-5
    assert figures == {
        "epsilon": 1.0,
        "delta": 1e-5,
        "accountant": "analytic Gaussian",
        "releases": 3,
        "neighbours": NEIGHBOURS,
    }


def test_cost_of_a_noise(capsys: pytest.CaptureFixture[str]) -> None:
    figures = answer(capsys, "gaussian", "--sigma", "3.731")
    assert figures["releases"] == 1 and figures["delta"] == 1e-5
    assert figures["epsilon"] == guarantee(Gaussian(3.731), 1e-5).epsilon < 1.0
    assert figures["epsilon"] < figures["epsilon_rdp"] and "sigma_rdp" not in figures


def test_cost_of_sampled_noise(capsys: pytest.CaptureFixture[str]) -> None:
    figures = answer(capsys, "poisson", *SAMPLED, "--sigma", "1.587", "--delta", "1e-5")
    assert figures["epsilon"] == guarantee(PoissonGaussian(1.587, 50 / 6000, 2000), 1e-5).epsilon
    assert figures["epsilon"] == pytest.approx(1.0, abs=2e-3) and figures["epsilon_rdp"] > figures["epsilon"]
    assert figures["accountant"] == "privacy-loss distribution"
    assert (figures["rate"], figures["steps"]) == (50 / 6000, 2000)


def test_sampled_noise_for_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    figures = answer(capsys, "poisson", "--rate", "0.02", "--steps", "100", "--epsilon", "0.3")
    event = PoissonGaussian(figures["sigma"], 0.02, 100)
    assert guarantee(event, 1e-5).epsilon <= 0.3
    assert figures["sigma_rdp"] > figures["sigma"]


def test_the_text_gives_both_figures_and_says_what_they_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("account", "gaussian", "--epsilon", "1", "--releases", "3") == 0
    text = capsys.readouterr().out
    for part in ("6.4617", "7.00", "3 releases", "(1, 1e-05)-private", "as likely", NEIGHBOURS, "more noise"):
        assert part in text, part
    assert run("account", "poisson", *SAMPLED, "--sigma", "3") == 0
    text = capsys.readouterr().out
    for part in ("Poisson", "0.00833333", "2,000 steps", "privacy-loss distribution", "Rényi", "as likely"):
        assert part in text, part
    assert max(map(len, text.splitlines())) <= 120


def test_printed_figures_are_rounded_up(capsys: pytest.CaptureFixture[str]) -> None:
    for epsilon in ("0.5", "1", "3", "8"):
        assert run("account", "gaussian", "--epsilon", epsilon) == 0
        printed = capsys.readouterr().out.split("standard deviation ")[1].split()[0]
        assert guarantee(Gaussian(float(printed)), 1e-5).epsilon <= float(epsilon)


def test_a_budget_that_protects_nobody_is_called_that(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["poisson", "--rate", "0.5", "--steps", "2000"], ["gaussian"]):
        assert run("account", *arguments, "--sigma", "0.1") == 0
        assert "protects nobody" in capsys.readouterr().out
    figures = answer(capsys, "poisson", "--rate", "0.5", "--steps", "2000", "--sigma", "0.1")
    assert figures["accountant"] == "Rényi" and figures["epsilon"] == figures["epsilon_rdp"] > 32


def test_a_budget_below_every_renyi_order(capsys: pytest.CaptureFixture[str]) -> None:
    figures = answer(capsys, "gaussian", "--epsilon", "0.001", "--delta", "1e-14")
    assert figures["sigma_rdp"] is None and figures["sigma"] > 1000
    assert run("account", "gaussian", "--epsilon", "0.001", "--delta", "1e-14") == 0
    assert "∞" in capsys.readouterr().out


@pytest.mark.parametrize(
    "rate, value", [("50/6000", 50 / 6000), ("0.01", 0.01), ("1e-2", 0.01), ("1", 1.0), ("1/1", 1.0)]
)
def test_rates(rate: str, value: float) -> None:
    assert account._rate(rate) == value


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["gaussian"], "--epsilon"),
        (["gaussian", "--epsilon", "1", "--sigma", "1"], "not allowed"),
        (["gaussian", "--epsilon", "0"], "above 0"),
        (["gaussian", "--epsilon", "-1"], "above 0"),
        (["gaussian", "--epsilon", "33"], "up to 32"),
        (["gaussian", "--epsilon", "nan"], "up to 32"),
        (["gaussian", "--epsilon", "one"], "not 'one'"),
        (["gaussian", "--sigma", "0"], "above 0"),
        (["gaussian", "--sigma", "inf"], "above 0"),
        (["gaussian", "--epsilon", "1", "--delta", "0"], "between 0 and 1"),
        (["gaussian", "--epsilon", "1", "--delta", "1"], "between 0 and 1"),
        (["gaussian", "--epsilon", "1", "--releases", "0"], "whole number"),
        (["gaussian", "--epsilon", "1", "--releases", "1.5"], "whole number"),
        (["gaussian", "--epsilon", "1", "--releases", "3000000000"], "whole number"),
        (["poisson", "--epsilon", "1"], "--rate"),
        (["poisson", *SAMPLED[:2], "--epsilon", "1"], "--steps"),
        (["poisson", "--rate", "5/0", "--steps", "1", "--epsilon", "1"], "50/6000, not '5/0'"),
        (["poisson", "--rate", "6000/50", "--steps", "1", "--epsilon", "1"], "up to 1"),
        (["poisson", "--rate", "1/2/3", "--steps", "1", "--epsilon", "1"], "50/6000"),
        (["poisson", "--rate", "often", "--steps", "1", "--epsilon", "1"], "50/6000"),
        (["poisson", "--rate", "0", "--steps", "1", "--epsilon", "1"], "above 0"),
        (["poisson", "--rate", "1e-9", "--steps", "5", "--epsilon", "1"], "smaller --delta"),
        (["gaussian", "--sigma", "1e-16"], "noise multiplier"),
        ([], "MECHANISM"),
        (["laplace"], "invalid choice"),
    ],
)
def test_bad_values_get_one_sentence(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = run("account", *arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert code in (2, 3) and out == ""
    assert complaint in err and "Traceback" not in err
    assert err.splitlines()[-1].startswith("dpdd-sim")


@pytest.mark.parametrize("place", ["before", "after", "nowhere"])
def test_debug_works_on_either_side_of_the_mechanism(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["poisson", "--rate", "1e-9", "--steps", "5", "--epsilon", "1"]
    arguments = {"before": ["--debug", *wrong], "after": [*wrong, "--debug"], "nowhere": wrong}[place]
    assert run("account", *arguments) == 3
    assert ("Traceback" in capsys.readouterr().err) == (place != "nowhere")


@pytest.mark.parametrize("arguments", [["account"], ["account", "gaussian"], ["account", "poisson"], ["bench-noise"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(*arguments, "--help")
    assert left.value.code == 0
    assert "SUPPRESS" not in capsys.readouterr().out


def test_neither_torch_nor_flwr_is_imported() -> None:
    script = (
        "import sys\n"
        "from dpdd.common.cli import Commands\n"
        "from dpdd.scenarios import account\n"
        "commands = Commands('dpdd-sim', 'test')\n"
        "account.add_to(commands)\n"
        "code = commands.main(['account', 'poisson', '--rate', '0.01', '--steps', '10', '--sigma', '3', '--json'])\n"
        "loaded = {'torch', 'flwr', 'torchvision'} & set(sys.modules)\n"
        "sys.exit(code or sorted(loaded) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sigma"] == 3.0 and done.stderr == ""


def test_the_noise_benchmark_says_how_fast_both_are(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("opendp")
    assert run("bench-noise", "--seconds", "0.05", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["scales"]
    assert [row["scale"] for row in rows] == [2**10, 2**18, 2**20]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["dpdd"] / row["opendp"]) and row["ratio"] > 10
    assert run("bench-noise", "--seconds", "0.02") == 0
    assert "OpenDP" in capsys.readouterr().out


def test_without_opendp_the_benchmark_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    monkeypatch.setitem(sys.modules, "opendp", None)
    assert run("bench-noise", "--seconds", "0.05") == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "pip install 'dpdd[dev]'" in err
