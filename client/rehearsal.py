"""The dry round, the silo's side: what this silo would do with a request, before anybody spends.

Answered from the request, `silo.toml` and the ledger. No record is read, nothing is reserved, and the request is not
kept for the operator: the report is the same for any records, and leaves the silo as it was. Only figures that follow
from the request leave; estimates that depend on how many records there are stay with `dpdd-client plan`.

The report says no where `Silo.answer` would, with the same reason. Where the operator still has to decide, an answer
would tell the coordinator no more than that; so neither does the report say then how much budget is left.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

from dpdd.client import ceilings, stages
from dpdd.client.ledger.ledger import Ledger, OverBudget
from dpdd.client.ledger.lookup import NotCovered
from dpdd.client.policy import Refused
from dpdd.client.silo import Silo
from dpdd.common.cli import software
from dpdd.common.config import one_line
from dpdd.common.errors import WireError
from dpdd.common.methods.plan import Plan
from dpdd.common.wire.answer import Reason, Refusal, Shortfall
from dpdd.common.wire.plan import Cost, Declared, PlanReport
from dpdd.common.wire.request import ReleaseRequest, decode_request


@dataclass(frozen=True)
class _Judged:
    """What the ledger says of a request that the policy allows."""

    asks_operator: bool
    paid: bool


def rehearse(silo: Silo, data: bytes) -> PlanReport:
    """What `silo` would do with the request in `data`; raises a DpddError when the silo itself is in trouble."""
    settings = silo.settings
    report = PlanReport(
        request_id=hashlib.sha256(data).hexdigest(),
        silo=settings.name,
        declared=Declared.by(settings.data),
        software=software(),
    )

    def refused(reason: Reason, why: str, shortfall: Shortfall | None = None) -> PlanReport:
        refusal = Refusal(report.request_id, report.silo, reason, one_line(why)[:1000], shortfall)
        return replace(report, refusal=refusal)

    try:
        request = decode_request(data)
        ledger = silo.ledger()
        try:
            if ledger.committed(request.id) is not None:  # whatever the policy says today, it gets the same bytes again
                return replace(report, paid=True)
            ceilings.check_rate(request, settings.policy, ledger)
            _, plan = silo.plan(request)
            report = replace(report, cost=Cost(plan.guarantee.epsilon, plan.guarantee.delta, plan.bytes))
            ceilings.check_room(request, plan, settings.policy, silo.outbox)
            judged = _judge(silo, ledger, request, plan)
        finally:
            ledger.close()
    except WireError as error:
        return refused(Reason.MALFORMED, str(error))
    except Refused as error:
        return refused(error.reason, str(error))
    except NotCovered as error:
        return refused(Reason.NOT_ALLOWED, str(error))
    except OverBudget as error:
        shortfall = Shortfall(error.verdict.requested, error.verdict.remaining)
        return refused(Reason.OVER_BUDGET, str(error), shortfall)
    return replace(report, asks_operator=judged.asks_operator, paid=judged.paid)


def _judge(silo: Silo, ledger: Ledger, request: ReleaseRequest, plan: Plan) -> _Judged:
    """Raises what would make `Silo.answer` refuse; writes nothing."""
    silo.check_ledger(ledger)
    first, spending = request.first_stage(), stages.reserved(plan)
    if request.stage > 0:
        ledger.check_stage(request.id, first.id, request.stage, spending)
    undecided = False
    if silo.settings.policy.approval == "ask":
        decision = ledger.decision(first.id)
        undecided = decision is None
        if decision is not None and decision.kind == "deny":
            raise Refused(Reason.DENIED, f"the silo's operator denied this request: {decision.body['why']}")
    verdict = ledger.judge(first.id, spending)
    unprotected = math.isinf(request.epsilon)  # the policy allowed it: its people are simulated
    if verdict is not None and not verdict.fits and not unprotected:
        if undecided:
            raise Refused(Reason.OVER_BUDGET, "the request does not fit into what is left of the silo's budget")
        raise OverBudget(verdict)
    return _Judged(undecided, verdict is None)
