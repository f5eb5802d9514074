"""`dpdd-server selftest`: the CPU agrees with itself, another result does not, and a missing device is one sentence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dpdd.server import selftest
from dpdd.server.cli import main
from dpdd.server.selftest import Comparison, Size, Work, compare, device_called

TINY = Size(per_class=2, synthesis=2, matching=2, training=2, width=4)
AGREED = Comparison("a task", cpu=1.0, other=0.5, start=5.0, reached=1.0, others=1.0)


def test_the_cpu_agrees_with_itself_and_prints_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "Size", lambda: TINY)
    assert main(["selftest", "--device", "cpu"]) == 0
    heading, _, *rows, note = capsys.readouterr().out.splitlines()
    assert heading.split() == ["seconds,", "cpu", "seconds,", "cpu", "times", "as", "fast", "apart"]
    assert [" ".join(row.split()[:2]) for row in rows] == ["synthesis by", "synthesis by", "evaluation by"]
    assert all(row.split()[-1] == "0.0000" and float(row.split()[-4]) > 0.0 for row in rows)
    assert note.startswith("apart: difference in the objective")


def test_a_device_that_computes_something_else_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed, calls = selftest._timed, list[Work]()

    def broken(work: Work, device: torch.device) -> tuple[tuple[torch.Tensor, torch.Tensor], float]:
        (result, start), seconds = timed(work, device)
        calls.append(work)
        return (start if calls.count(work) == 2 else result, start), seconds  # the other device does nothing

    monkeypatch.setattr(selftest, "_timed", broken)
    monkeypatch.setattr(selftest, "Size", lambda: TINY)
    assert main(["selftest", "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    assert "1.0000" in out and "cpu and cpu disagree in synthesis by SPS and synthesis by matching" in err


def test_only_small_and_known_differences_agree() -> None:
    assert AGREED.apart == 0.0 and AGREED.agrees
    assert replace(AGREED, others=1.19).agrees and replace(AGREED, others=0.81).agrees
    assert not replace(AGREED, others=1.21).agrees and not replace(AGREED, others=0.79).agrees
    assert not replace(AGREED, others=math.nan).agrees and not replace(AGREED, start=1.0).agrees


@pytest.mark.parametrize(("name", "why"), [("abacus", "no device 'abacus'"), ("meta", "computes nothing")])
def test_a_device_that_is_not_here_is_one_sentence(name: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--device", name]) == 3
    assert why in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_is_the_default_and_may_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest"]) == 3
    assert "no device 'cuda' that torch can use" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU that torch can use")
def test_a_gpu_agrees_with_the_cpu() -> None:
    assert all(each.agrees for each in compare(device_called("cuda")))
