"""The silo's privacy budget: an append-only ledger in SQLite, with full durability.

`reserve` before records are read, `commit` when the signed release lies in the outbox. Both happen in one transaction
each, under a write lock, so two processes cannot both take what is left; both are idempotent per request id, so a
restart spends nothing twice. A reservation counts as spent from the moment it is made.

Composition is fully adaptive, so it is bounded by a privacy filter (`dpdd.common.privacy.filters`): requests are chosen
by somebody who has seen the earlier answers.

A method may release in stages. The reservation of stage 0 is for all of them together, whether or not the others are
ever asked for; `begin_stage` notes which request took which of them, one each for ever, and spends nothing. A later
stage's input may depend on the earlier answers: Gaussian noise composes to the same μ for adaptively chosen queries,
as long as each has the sensitivity and the noise that were reserved.

What a decision needs of the past is in a signed checkpoint (`dpdd.client.ledger.checkpoint`), which every entry brings
up to date in its own transaction; so a decision costs the same after ten entries and after ten thousand. `entries`
verifies the whole ledger. That happens, too, before noise is drawn for what was paid for earlier: an entry that is
missing there would mean a second release for one payment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dpdd.client.ledger import checkpoint as checkpoints
from dpdd.client.ledger.checkpoint import Checkpoint
from dpdd.client.ledger.hash_chain import Entry, EntryKind
from dpdd.client.ledger.ledger_file import Draft, LedgerFile, budget_body, stamp
from dpdd.client.ledger.lookup import spending_of
from dpdd.common.errors import BudgetError, LedgerError
from dpdd.common.privacy import events
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.privacy.filters import Budget, Spending, Spent, Verdict, mode_for, remaining, spent_epsilon, verdict


class OverBudget(BudgetError):
    """A request that does not fit, with the figures."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        because = f": {verdict.why}" if verdict.why else ""
        figures = f"requested ε = {verdict.requested:.4g}, remaining ε = {verdict.remaining:.4g}"
        difference = f"difference {max(verdict.difference, 0.0):.4g}"
        super().__init__(f"the request does not fit the budget{because}: {figures}, {difference}")


@dataclass(frozen=True)
class BudgetStatus:
    """What the operator wants to know at a glance: `reserved` requests and `committed` releases, one per stage."""

    silo: str
    budget: Budget
    spent: float
    remaining: float
    reserved: int
    committed: int
    head: str


class Ledger(LedgerFile):
    """One silo's ledger."""

    def reserve(
        self,
        request_id: str,
        method: str,
        spending: Spending,
        guarantee: Guarantee,
        details: dict[str, Any],
        *,
        stages: int = 1,
        unprotected_allowed: bool = False,
    ) -> Entry:
        """Set budget aside for a request, durably; OverBudget when it does not fit. Reserving again changes nothing.

        `spending` is for all `stages` of the request together, and they fit together or not at all.

        `unprotected_allowed` is for simulated people: a release without noise then passes, and nothing fits after it.
        """
        with self._writing() as now:
            known = self._lookup.reservation(request_id)
            if known is not None:
                self._check_reuse(known, now, request_id)
                return known
            decision = verdict(self._budget, self._spent(now), spending)
            if not decision.fits and not (unprotected_allowed and math.isinf(guarantee.epsilon)):
                raise OverBudget(decision)
            body = {
                "method": method,
                "event": events.to_json(spending.event),
                "distance": spending.distance,
                "epsilon": guarantee.epsilon,
                "delta": guarantee.delta,
                "accountant": guarantee.accountant,
                "filter": decision.mode,
                "stages": stages,
                **details,
            }
            return self._append(now, Draft("reserve", request_id, body))

    def begin_stage(self, request_id: str, root: str, stage: int, spending: Spending) -> Entry:
        """Note, durably, that a request takes `stage` of what was reserved for the request `root`; spends nothing.

        `spending` is what all stages cost by today's plan. NotCovered unless that was reserved, and when another
        request has this stage already. Beginning again changes nothing.
        """
        with self._writing() as now:
            known = self._lookup.taken_stage(request_id, root, stage, spending)
            reserved = self._lookup.reservation(root)
            assert reserved is not None
            self._check_reuse(known or reserved, now, request_id)
            return known or self._append(now, Draft("stage", request_id, {"root": root, "stage": stage}))

    def check_stage(self, request_id: str, root: str, stage: int, spending: Spending) -> None:
        """NotCovered when `begin_stage` would say so."""
        with self._errors(), self._reading():
            self._lookup.taken_stage(request_id, root, stage, spending)

    def commit(self, request_id: str, release_sha256: str) -> Entry:
        """Note which release answered a reserved request; a second, different one is an error."""
        with self._writing() as now:
            if self._lookup.paid(request_id) is None:
                raise LedgerError(f"request {request_id[:12]} was never reserved; its release must not leave")
            known = self._lookup.commit(request_id)
            if known is None:
                return self._append(now, Draft("commit", request_id, {"release_sha256": release_sha256}))
            if known.body["release_sha256"] != release_sha256:
                raise LedgerError(f"request {request_id[:12]} was answered by another release already")
            return known

    def note(self, kind: EntryKind, request_id: str = "", body: dict[str, Any] | None = None) -> Entry:
        """Append an operator's decision: an approval, a denial, a new budget, an accepted clock."""
        with self._writing(check_clock=kind != "clock") as now:
            return self._append(now, Draft(kind, request_id, body or {}))

    def rebuild(self, drafts: Iterable[Draft]) -> None:
        """Append what a recovery found, all of it or nothing. The anchor, which knows more, is not asked before."""
        with self._writing(check_clock=False, rebuilding=True) as now:
            for draft in drafts:
                entry = self._append(now, draft)
                now = now.after(entry)

    def accept_budget(self, budget: Budget) -> None:
        """Record that the operator changed the budget in `silo.toml`; the filter that releases settled stays."""
        entries = self.entries()
        spent = next((spending_of(each) for each in entries if each.kind in ("reserve", "recovered")), None)
        if spent and mode_for(checkpoints.recorded_budget(entries), spent) != mode_for(budget, spent):
            raise LedgerError(
                "the first release settled how this ledger composes, and the new budget would change that; "
                "keep its composition, or start a new silo with new records"
            )
        self._budget = budget
        self.note("budget", body=budget_body(self._silo, budget))

    def recorded_budget(self) -> Budget:
        """The budget that the ledger was opened with, or that was accepted since."""
        return self._now().budget

    def judge(self, request_id: str, spending: Spending) -> Verdict | None:
        """What `reserve` would say, without reserving; None when the request is reserved already."""
        with self._errors(), self._reading():
            if self._lookup.reservation(request_id) is not None:
                return None
            return verdict(self._budget, self._spent(self._current()), spending)

    def committed(self, request_id: str) -> str | None:
        """SHA-256 of the release that answered the request, if one did."""
        with self._errors():
            entry = self._lookup.commit(request_id)
        return None if entry is None else str(entry.body["release_sha256"])

    def reservation(self, request_id: str) -> Entry | None:
        """The entry that set budget aside for the request, or gave it a stage of what was set aside, if any."""
        with self._errors():
            return self._lookup.paid(request_id)

    def unpaid(self, request_ids: Iterable[str]) -> list[str]:
        """Those of the requests for which no budget was set aside."""
        with self._errors(), self._reading():
            return self._lookup.unpaid(request_ids)

    def paid_since(self, moment: datetime, most: int) -> int:
        """How many requests were paid for after `moment`, as far as `most`."""
        with self._errors():
            return self._lookup.paid_since(stamp(moment), most)

    def decision(self, request_id: str) -> Entry | None:
        """The operator's last word on a request, if any."""
        with self._errors():
            return self._lookup.decision(request_id)

    def check_anchor(self) -> None:
        """LedgerError when the anchor knows more than the ledger."""
        if self._anchor is not None:
            self._anchor.check(self)

    def follow_anchor(self) -> None:
        """Let the anchor know as much as the ledger; one that is gone begins anew."""
        if self._anchor is not None:
            self._anchor.follow(self)

    def status(self) -> BudgetStatus:
        """Spent and remaining, as of now."""
        with self._errors(), self._reading():
            now = self._current()
            spent = self._spent(now)
        return BudgetStatus(
            silo=self._silo,
            budget=self._budget,
            spent=spent_epsilon(self._budget, spent),
            remaining=remaining(self._budget, spent),
            reserved=now.head.reservations,
            committed=now.committed,
            head=now.head.entry,
        )

    def check_budget(self) -> None:
        """LedgerError when `silo.toml` and the ledger disagree about the budget."""
        recorded = self.recorded_budget()
        if recorded != self._budget:
            raise LedgerError(
                f"silo.toml has a budget of ({self._budget.epsilon:g}, {self._budget.delta:g}, "
                f"{self._budget.composition}), the ledger one of ({recorded.epsilon:g}, {recorded.delta:g}, "
                f"{recorded.composition}); `dpdd-client budget --accept-change` records the new one"
            )

    def check_holdout(self, details: Mapping[str, str]) -> None:
        """LedgerError unless all reservations were made with the holdout in `details` (which may have none)."""
        declared = details.get("holdout")
        for before in self._now().holdouts:
            if before != declared:
                now, then = (text.split()[0] if text else "none" for text in (declared, before))
                why = "with another key" if now == then else f"with a holdout of {then}, and silo.toml says {now}"
                raise LedgerError(
                    f"earlier releases of this silo were made {why}: records would change sides, so put "
                    "evaluation.holdout (or state/holdout.key) back as it was"
                )

    def _spent(self, now: Checkpoint) -> Spent:
        """What was spent, as the filter of this budget counts it."""
        return now.spent if now.budget == self._budget else checkpoints.summed(self.entries(), self._budget).spent

    def _check_reuse(self, paid: Entry, now: Checkpoint, request_id: str) -> None:
        """LedgerError unless noise may be drawn for `request_id`, which `paid` covers since earlier."""
        if paid.seq <= now.rebuilt_at and self._lookup.commit(request_id) is None:
            raise LedgerError(
                f"request {request_id[:12]} was paid for before this ledger was rebuilt, and its release is not here: "
                "nobody knows whether one left, so it is not made (again)"
            )
        self.entries()
