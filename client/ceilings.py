"""Ceilings of `[policy]` on what one coordinator can make a silo do, over all its requests.

They are decided from the request, `silo.toml`, the ledger and the sizes of files in the outbox, which follow from
earlier requests: no record is read for them. What needs no plan is checked before anything is planned, and all of it
before budget is set aside.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dpdd.client.config import PolicySettings
from dpdd.client.ledger.ledger import Ledger
from dpdd.client.outbox import Outbox
from dpdd.client.policy import Refused
from dpdd.common.methods.plan import ENVELOPE, Plan
from dpdd.common.wire.answer import Reason
from dpdd.common.wire.request import ReleaseRequest

_DAY = timedelta(days=1)


def check_rate(request: ReleaseRequest, policy: PolicySettings, ledger: Ledger, now: datetime | None = None) -> None:
    """Refused when as many requests as the policy allows were paid for within 24 hours; stages are one request.

    Entries from the future, which a clock that went wrong leaves behind, count too.
    """
    if policy.requests_per_day is None or ledger.reservation(request.first_stage().id) is not None:
        return
    since = (now or datetime.now(UTC)) - _DAY
    if ledger.paid_since(since, policy.requests_per_day) >= policy.requests_per_day:
        raise Refused(
            Reason.NOT_ALLOWED, f"the policy allows {policy.requests_per_day} requests within 24 hours; ask again later"
        )


def check_size(plan: Plan, policy: PolicySettings) -> None:
    """Refused when the release would be larger than the policy allows."""
    if policy.most_bytes is not None and plan.bytes > policy.most_bytes:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the release would have {plan.bytes} bytes, the policy allows {policy.most_bytes} a release",
        )


def check_machine(plan: Plan, memory: int, policy: PolicySettings) -> None:
    """Refused when the answer may take more memory, or the release more disk, than the policy allows.

    `memory` is a bound for any records. What depends on how many there are (CPU time, unpacked copies) is not judged
    here, as even the verdict would tell: there the worker has limits, and the operator an estimate.
    """
    if policy.most_memory is not None and memory > policy.most_memory:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the answer may take {memory} bytes of memory, the policy allows {policy.most_memory}",
        )
    if policy.most_disk is not None and plan.bytes + ENVELOPE > policy.most_disk:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the release takes {plan.bytes + ENVELOPE} bytes of disk, the policy allows {policy.most_disk}",
        )


def check_room(request: ReleaseRequest, plan: Plan, policy: PolicySettings, outbox: Outbox) -> None:
    """Refused when the release would not fit into the outbox's quota. How full it is is nobody else's business."""
    if policy.outbox_quota is None or outbox.path(request.id).exists():
        return
    if outbox.size() + plan.bytes + ENVELOPE > policy.outbox_quota:
        raise Refused(Reason.NOT_ALLOWED, "the release does not fit into what the policy leaves for the outbox")
