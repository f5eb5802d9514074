"""Progress where nobody has a terminal: a few lines with the time left, none when quiet. The clock is the test's."""

from __future__ import annotations

import re
import sys

import pytest

from dpdd.common.progress import LATEST, SOONEST, STEP, Console


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(console: Console, clock: Clock, seconds: float, steps: int, first: int = 0) -> None:
    """A phase of even steps, of which `first` were done before."""
    for done in range(first, steps + 1):
        console("summing", done, steps)
        clock.now += seconds / (steps - first)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_a_short_phase_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    run(Console(clock=clock), clock, SOONEST - 1, 1000)
    assert lines(capsys) == ["  summing ..."]


@pytest.mark.parametrize("seconds", [10 * SOONEST, 1000.0, 20_000.0])
def test_a_long_phase_says_how_far_it_is_and_when_it_ends(seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    run(Console(clock=clock), clock, seconds, 10_000)
    first, *others = lines(capsys)
    assert first == "  summing ..."
    assert 1 / STEP - 2 <= len(others) <= max(1 / STEP, seconds / LATEST + 1)
    for line in others:
        match = re.fullmatch(r"  summing: (\d+)%, ([\d.]+) (s|min|h) left", line)
        assert match, line
        left = float(match[2]) * {"s": 1, "min": 60, "h": 3600}[match[3]]
        assert left == pytest.approx(seconds * (1 - int(match[1]) / 100), abs=seconds / 100 + 180)


def test_what_an_earlier_run_did_does_not_speed_up_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    run(Console(clock=clock), clock, 1000.0, 1000, first=800)
    shown = [re.fullmatch(r"  summing: (\d+)%, (\d+) (s|min) left", line) for line in lines(capsys)[1:]]
    assert shown
    for match in shown:
        assert match
        left = float(match[2]) * {"s": 1, "min": 60}[match[3]]
        assert left == pytest.approx((100 - int(match[1])) / 20 * 1000, abs=60)


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    console = Console(quiet=True, clock=clock)
    run(console, clock, 10_000.0, 100)
    console.say("a line")
    console.finish()
    assert lines(capsys) == []


def test_a_terminal_has_one_moving_line_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clock = Clock()
    console = Console(clock=clock)
    run(console, clock, 200.0, 10)
    console.finish()
    _, err = capsys.readouterr()
    assert (
        err.count("\n") == 1 and "50%, 100 s left" not in err and " 50%, 2 min left" in err and " 90%, 20 s left" in err
    )
