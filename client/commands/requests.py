"""`plan`, `requests`, `approve`, `deny` and `answer`: a request, from its cost to the signed release."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from dpdd.client.commands.options import named_request, open_silo, read_request, waiting_request
from dpdd.common.cli import facts, print_json, table
from dpdd.common.errors import ConfigError, DpddError, PolicyError

if TYPE_CHECKING:
    from dpdd.client.estimates import Estimate
    from dpdd.client.silo import Silo
    from dpdd.client.worker.worker import Worker
    from dpdd.common.config import Settings
    from dpdd.common.methods.plan import Plan
    from dpdd.common.wire.request import ReleaseRequest


def plan(options: argparse.Namespace) -> None:
    """Show what a request would cost; records are counted and not read, nothing is reserved."""
    from dpdd.client.worker.worker import Worker

    with Worker() as worker:
        _plan(options, None if options.quick else worker)


def _plan(options: argparse.Namespace, worker: Worker | None) -> None:
    from dpdd.client.ceilings import check_rate, check_room
    from dpdd.client.ledger.lookup import NotCovered
    from dpdd.client.policy import Refused
    from dpdd.client.stages import reserved
    from dpdd.common.methods.registry import query
    from dpdd.common.privacy.events import describe
    from dpdd.common.wire.request import Kind

    silo = open_silo(options, worker)
    request = named_request(silo, options.request)
    try:
        settings, plan = silo.plan(request)
    except Refused as error:
        raise PolicyError(f"this silo would refuse ({error.reason.words}): {error}") from None
    distilled = request.kind is Kind.DISTILLED_SET
    whole, stages = reserved(plan), 1 if distilled else query(request.method).stages(settings)
    ledger = silo.ledger()
    try:
        check_rate(request, silo.settings.policy, ledger)
        check_room(request, plan, silo.settings.policy, silo.outbox)
        if request.stage > 0:
            ledger.check_stage(request.id, request.first_stage().id, request.stage, whole)
        verdict = ledger.judge(request.first_stage().id, whole)
        remaining = ledger.status().remaining
    except (NotCovered, Refused) as error:
        raise PolicyError(f"this silo would refuse (not allowed): {error}") from None
    finally:
        ledger.close()
    fits = verdict is None or verdict.fits
    estimate = _estimate(silo, worker, request, settings, plan)
    leaving = "synthetic records" if distilled else f"{plan.coordinates} noisy numbers"
    if options.json:
        print_json(
            {
                "request": request.id,
                "run": request.run,
                "method": request.method,
                "kind": request.kind.words,
                "epsilon": plan.guarantee.epsilon,
                "delta": plan.guarantee.delta,
                "accountant": plan.guarantee.accountant,
                "stage": request.stage,
                "stages": stages,
                "event": describe(plan.event),
                "event_of_all_stages": describe(whole.event),
                "numbers": plan.coordinates,
                "bytes": plan.bytes,
                "remaining": remaining,
                "paid_already": verdict is None,
                "fits": fits,
                "estimate": None if estimate is None else {**asdict(estimate), "exceeds": _exceeded(silo, estimate)},
            }
        )
        return
    staged = {"stage": f"{request.stage} of 0..{stages - 1}", "all stages": describe(whole.event)} if stages > 1 else {}
    print(
        facts(
            {
                "request": request.id[:16] + "…",
                "run": request.run,
                "method": f"{request.method} ({request.kind.words})",
                "asks for": f"ε = {request.epsilon:g}, δ = {request.delta:g}",
                **staged,
                "event": describe(plan.event),
                "accounted by": plan.guarantee.accountant,
                "leaves": f"{leaving}, about {plan.bytes / 1e6:.2f} MB",
                "remaining now": f"ε = {remaining:.4g}",
                **_takes(silo, estimate, tried=worker is not None),
            }
        )
    )
    if verdict is None and request.stage > 0:
        print("this stage is paid for: stage 0 reserved for all stages")
    elif verdict is None:
        print("this request is paid for already: answering it (again) costs nothing")
    elif fits:
        print("it fits into the budget")
    else:
        print(
            f"it does NOT fit: requested ε = {verdict.requested:.4g}, remaining ε = {verdict.remaining:.4g}, "
            f"difference {verdict.difference:.4g}" + (f" ({verdict.why})" if verdict.why else "")
        )


def _estimate(
    silo: Silo, worker: Worker | None, request: ReleaseRequest, settings: Settings, plan: Plan
) -> Estimate | None:
    """What an answer takes of this machine; None where the records cannot be counted."""
    from dpdd.client.estimates import Estimate, memory_bound
    from dpdd.client.records import load
    from dpdd.client.worker.worker import planning_limits_of

    try:
        records = len(load(silo.settings.data, silo.folder))
    except DpddError:
        return None
    limits = planning_limits_of(silo.settings)
    measured = None if worker is None else worker.measure(request, plan, limits)
    return Estimate.of(silo.settings, plan, memory_bound(request, settings, plan), measured, records)


def _exceeded(silo: Silo, estimate: Estimate) -> list[str]:
    return estimate.exceeded(silo.settings)


def _takes(silo: Silo, estimate: Estimate | None, *, tried: bool) -> dict[str, str]:
    """The estimate in words, for the operator alone."""
    if estimate is None:
        return {"takes": "unknown, as the records cannot be counted"}
    takes = f"up to {estimate.memory / 1e6:.0f} MB of memory, up to {estimate.disk / 1e6:.2f} MB of disk"
    if estimate.cpu_seconds is not None:
        takes = f"about {estimate.cpu_seconds:.2g} CPU seconds, {takes}"
    elif tried:
        takes = f"more than {silo.settings.worker.planning_seconds} CPU seconds, {takes}"
    exceeded = _exceeded(silo, estimate)
    over = {"but": f"the worker would be ended at {', '.join(exceeded)}"} if exceeded else {}
    return {"takes": f"{takes} ({estimate.records} records)", **over}


def requests(options: argparse.Namespace) -> None:
    """List the requests that wait for the operator's decision."""
    silo = open_silo(options)
    waiting = silo.waiting()
    if options.json:
        print_json(
            [{"id": r.id, "run": r.run, "method": r.method, "epsilon": r.epsilon, "delta": r.delta} for r in waiting]
        )
    elif waiting:
        rows = [[r.id[:16], r.run, r.method, f"{r.epsilon:g}", f"{r.delta:g}"] for r in waiting]
        print(table(["request", "run", "method", "ε", "δ"], rows))
    else:
        print("no request is waiting")


def approve(options: argparse.Namespace) -> None:
    """Allow a request that waits."""
    _decide(options, "approve", {})


def deny(options: argparse.Namespace) -> None:
    """Refuse a request that waits."""
    _decide(options, "deny", {"why": options.why})


def _decide(options: argparse.Namespace, kind: Literal["approve", "deny"], body: dict[str, str]) -> None:
    silo = open_silo(options)
    request = waiting_request(silo, options.id)
    ledger = silo.ledger()
    try:
        ledger.note(kind, request.id, body)
    finally:
        ledger.close()
    print(f"{'approved' if kind == 'approve' else 'denied'} {request.id[:16]} ({request.run}, ε = {request.epsilon:g})")


def answer(options: argparse.Namespace) -> None:
    """Answer a request file with a signed release, without a network."""
    from dpdd.client.durable import write_new
    from dpdd.client.worker.worker import Worker
    from dpdd.common.progress import Console
    from dpdd.common.wire.answer import Refusal

    console = Console(options.quiet or options.json)

    def waiting() -> None:
        console.say("another dpdd process is making a release for this silo; this one waits for it")

    with Worker() as worker:
        reply = open_silo(options, worker).answer(read_request(options.request), console, waiting)
    console.finish()
    if isinstance(reply, Refusal):
        raise PolicyError(f"refused ({reply.reason.words}): {reply.message}")
    try:
        written = write_new(options.out, reply.data)
    except OSError as error:
        raise DpddError(
            f"{options.out}: the release cannot be written ({error.strerror}); it is safe in the outbox"
        ) from None
    if not written and options.out.read_bytes() != reply.data:
        raise ConfigError(f"{options.out}: there is another file of that name")
    if options.json:
        print_json({"release": str(options.out), "bytes": len(reply.data), "request": options.request.name})
    elif not options.quiet:
        print(f"wrote {options.out} ({len(reply.data)} bytes); this request will always get these bytes")
