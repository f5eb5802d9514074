"""An audit's result, in words and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpdd.client.auditing.one_run import AuditResult
from dpdd.common.cli import facts


def as_text(result: AuditResult) -> str:
    """What was guessed, what that refutes, and what it does not say.

    >>> from dpdd.common.privacy.auditing import OneRun
    >>> one, curve = OneRun(100, 20, 14), OneRun(100, 60, 33)
    >>> print(as_text(AuditResult("sps", 1.0, 1e-5, 0.95, "checks", one, 0.12, curve, 0.0, False)))
    claimed          ε = 1 at δ = 1e-05
    canaries         100, "checks", each included by a fair coin
    one run          14 of 20 guesses right: ε is at least 0.12
    trade-off curve  33 of 60 guesses right: no ε above 0 follows
    confidence       95 %, for both together
    verdict          nothing contradicts the claim (no audit proves one)
    """
    return facts(
        {
            "claimed": f"ε = {result.claimed_epsilon:g} at δ = {result.delta:g}",
            "canaries": f'{result.one_run.canaries:,}, "{result.family}", each included by a fair coin',
            "one run": _bound(result.one_run.correct, result.one_run.guesses, result.one_run_bound),
            "trade-off curve": _bound(result.curve_run.correct, result.curve_run.guesses, result.curve_bound),
            "confidence": f"{100.0 * result.confidence:g} %, for both together",
            "verdict": verdict(result),
        }
    )


def verdict(result: AuditResult) -> str:
    """One sentence."""
    if result.one_run_bound > result.claimed_epsilon:
        return f"REFUTED: what is claimed is too little, as ε is at least {result.one_run_bound:.3g}"
    if result.curve_refuted:
        return "REFUTED: a mechanism with the claimed noise gives away less"
    return "nothing contradicts the claim (no audit proves one)"


def as_json(result: AuditResult) -> dict[str, Any]:
    """The same for `audit.json`."""

    def run(one: Any, bound: float) -> Mapping[str, Any]:
        return {"guesses": one.guesses, "correct": one.correct, "epsilon_at_least": bound}

    return {
        "method": result.method,
        "claimed": {"epsilon": result.claimed_epsilon, "delta": result.delta},
        "canaries": result.one_run.canaries,
        "family": result.family,
        "confidence": result.confidence,
        "one_run": run(result.one_run, result.one_run_bound),
        "trade_off_curve": {**run(result.curve_run, result.curve_bound), "refuted": result.curve_refuted},
        "refuted": result.refuted,
    }


def _bound(correct: int, guesses: int, bound: float) -> str:
    found = f"ε is at least {bound:.3g}" if bound > 0.0 else "no ε above 0 follows"
    return f"{correct} of {guesses} guesses right: {found}"
