"""`dpdd-client`: the silo operator's command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import Commands, facts, print_json, table
from dpdd.common.errors import ConfigError, DpddError, PolicyError, WireError

if TYPE_CHECKING:
    from dpdd.client.ledger.hash_chain import Entry
    from dpdd.client.silo import Silo

TEMPLATE = """\
# A silo: what data it has, what it will ever spend on it, and what it lets others ask.
# `dpdd-client preflight` checks this file and the data; nothing leaves this machine for that.
name = "{name}"

[data]
# One of: image-folder (a sub-folder per class), idx, npz, csv, parquet. Paths are relative to this file.
format = "image-folder"
path = "images"
# The class list and the shape of one record (channels, height, width) are public: every silo of a run has the same.
classes = ["benign", "malignant"]
shape = [1, 28, 28]

[budget]
# Over all runs and coordinators, for ever. Neighbours: {neighbours}.
epsilon = 1.0
delta = 1e-5

[policy]
methods = [{methods}]
epsilon_per_request = 1.0
# "ask": every request waits for `dpdd-client approve ID`; "auto": what the policy allows is answered at once.
approval = "ask"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    commands = Commands("dpdd-client", "Keep a silo: its private data, its budget, and what leaves it.")
    init = commands.add(
        "init", _init, "make a silo folder: silo.toml to fill in, then (run it again) its key and its ledger"
    )
    init.add_argument("folder", type=Path, help="the silo's folder")
    init.add_argument("--name", help="the silo's name (default: the folder's)")
    _silo_command(
        commands, "preflight", _preflight, "read the data, check the policy, and say what is wrong", json=True
    )
    budget = _silo_command(commands, "budget", _budget, "show what is spent and what is left", json=True)
    budget.add_argument(
        "--accept-change", action="store_true", help="record in the ledger that silo.toml has a new budget"
    )
    plan = _silo_command(commands, "plan", _plan, "show what a request would cost, without touching records", json=True)
    plan.add_argument("request", type=Path, help="a request file (*.request)")
    log = _silo_command(commands, "log", _log, "show the ledger, verified against its hashes and signatures", json=True)
    log.add_argument("--accept-clock", action="store_true", help="record that the clock was wrong and is right now")
    _silo_command(commands, "requests", _requests, "list the requests that wait for your decision", json=True)
    approve = _silo_command(commands, "approve", _approve, "allow a request that waits")
    approve.add_argument("id", help="the request's id, or its first characters")
    deny = _silo_command(commands, "deny", _deny, "refuse a request that waits")
    deny.add_argument("id", help="the request's id, or its first characters")
    deny.add_argument("--why", required=True, help="what the coordinator is told")
    answer = _silo_command(commands, "answer", _answer, "answer a request from a file, into a file", json=True)
    answer.add_argument("request", type=Path, help="a request file (*.request)")
    answer.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the signed release goes")
    answer.add_argument("--quiet", action="store_true", help="no progress")
    join = _silo_command(commands, "join", _join, "join a coordinator with the token that it gave you")
    join.add_argument("address", help="the coordinator's HOST:PORT for joining")
    join.add_argument("token", nargs="?", help="the one-time join token, or - to read it from stdin")
    join.add_argument(
        "--loopback-demo", action="store_true", help="INSECURE: trust whoever listens on 127.0.0.1, without a token"
    )
    run = _silo_command(
        commands,
        "run",
        _run,
        "answer the coordinator's requests until you stop it",
        "Runs the installed mechanisms and nothing else; reconnects by itself; may be stopped at any moment.",
    )
    run.add_argument("--address", metavar="HOST:PORT", help="where the coordinator listens now, if it moved")
    run.add_argument("--quiet", action="store_true", help="no progress")
    return commands.main(arguments)


def _silo_command(
    commands: Commands, name: str, run: Any, summary: str, details: str = "", *, json: bool = False
) -> argparse.ArgumentParser:
    parser = commands.add(name, run, summary, details)
    parser.add_argument("--silo", type=Path, default=Path(), metavar="FOLDER", help="the silo's folder")
    if json:
        parser.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _silo(options: argparse.Namespace) -> Silo:
    from dpdd.client.silo import Silo

    return Silo(options.silo)


def _init(options: argparse.Namespace) -> None:
    from dpdd.client.silo import Silo
    from dpdd.common.methods.registry import METHODS
    from dpdd.common.privacy.events import NEIGHBOURS
    from dpdd.common.wire.parsing import check_name

    folder: Path = options.folder
    settings = folder / "silo.toml"
    if not settings.exists():
        try:
            name = check_name("silo name", options.name or folder.resolve().name)
        except WireError as error:
            raise ConfigError(f"{error}; give one with --name") from None
        methods = ", ".join(f'"{method}"' for method in sorted(METHODS))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            settings.write_text(TEMPLATE.format(name=name, methods=methods, neighbours=NEIGHBOURS))
        except OSError as error:
            raise ConfigError(f"{settings}: cannot be written ({error.strerror})") from None
        print(f"wrote {settings}\nfill in data, budget and policy, then run `dpdd-client init {folder}` again")
        return
    had_ledger = (folder / "state" / "ledger.sqlite").exists()
    silo = Silo.initialise(folder)
    print(f"silo {silo.settings.name}: {'ledger and key are there' if had_ledger else 'made its key and its ledger'}")
    print(f"public key {silo.public_key.hex()}")
    print(f"next: `dpdd-client preflight --silo {folder}` reads the data and checks the policy")


def _preflight(options: argparse.Namespace) -> None:
    from dpdd.client.records import describe, load

    silo = _silo(options)
    findings: list[str] = []
    ledger = silo.ledger()
    try:
        ledger.check_budget()
        status = ledger.status()
    finally:
        ledger.close()
    facts = describe(load(silo.settings.data, silo.folder), silo.settings.data)
    policy = silo.settings.policy
    if facts.count == 0:
        findings.append("the data holds no record: a release would be noise only")
    empty = [name for name, count in facts.per_class.items() if count == 0]
    if empty and facts.count:
        findings.append(f"no record of class {', '.join(empty)}: that part of a release would be noise only")
    if facts.non_finite:
        findings.append(f"{facts.non_finite} records have NaN or infinite values and will contribute nothing")
    if silo.settings.public_counts and silo.settings.public_counts != tuple(facts.per_class.values()):
        findings.append("policy.public_counts declares other counts than the data has")
    if policy.epsilon_per_request > silo.settings.budget.epsilon:
        findings.append("policy.epsilon_per_request is larger than the whole budget")
    if not policy.methods:
        findings.append("policy.methods is empty: every request will be refused")
    if status.remaining <= 0.0:
        findings.append("the budget is used up: every new request will be refused")
    if silo.settings.simulation is not None:
        findings.append("[simulation] is set: releases of this silo protect nobody")
    if options.json:
        print_json(
            {
                "silo": silo.settings.name,
                "records": facts.count,
                "per_class": facts.per_class,
                "shape": list(facts.shape),
                "minimum": facts.minimum,
                "maximum": facts.maximum,
                "non_finite": facts.non_finite,
                "epsilon_remaining": status.remaining,
                "findings": findings,
            }
        )
        return
    print(
        f"silo {silo.settings.name}: {facts.count} records of shape {tuple(facts.shape)}, values in "
        f"[{facts.minimum}, {facts.maximum}]"
    )
    print(table(["class", "records"], [[name, str(count)] for name, count in facts.per_class.items()]))
    declared = silo.settings.public_counts
    print(
        f"(these counts are {'declared public' if declared else 'private: they are shown here only, and never sent'})"
    )
    print(
        f"budget: ε = {status.remaining:.4g} of {status.budget.epsilon:g} left at δ = {status.budget.delta:g}; "
        f"approval: {policy.approval}; methods: {', '.join(policy.methods) or 'none'}"
    )
    for finding in findings:
        print(f"note: {finding}")
    print("ready" if not findings else "ready, with the notes above")


def _budget(options: argparse.Namespace) -> None:
    silo = _silo(options)
    ledger = silo.ledger()
    try:
        if options.accept_change:
            ledger.accept_budget(silo.settings.budget.budget())
        ledger.check_budget()
        status = ledger.status()
        entries = ledger.entries()
    finally:
        ledger.close()
    if options.json:
        print_json(
            {
                "silo": status.silo,
                "epsilon": status.budget.epsilon,
                "delta": status.budget.delta,
                "composition": status.budget.composition,
                "spent": status.spent,
                "remaining": status.remaining,
                "reserved": status.reserved,
                "committed": status.committed,
                "ledger_head": status.head,
            }
        )
        return
    print(f"silo {status.silo}: budget ε = {status.budget.epsilon:g} at δ = {status.budget.delta:g}")
    print(facts({"spent": f"ε = {status.spent:.4f}", "remaining": f"ε = {status.remaining:.4f}"}))
    rows = [
        [
            e.time[:19].replace("T", " "),
            e.body["run"],
            e.body["method"],
            f"{e.body['epsilon']:g}",
            f"{e.body['delta']:g}",
            _state(e, entries),
            e.request_id[:12],
        ]
        for e in entries
        if e.kind == "reserve"
    ]
    if rows:
        print()
        print(table(["when (UTC)", "run", "method", "ε", "δ", "state", "request"], rows))
        print("(releases compose: the total grows more slowly than the sum of the ε)")


def _state(reservation: Entry, entries: list[Entry]) -> str:
    """How much of what was reserved has been released."""
    of = reservation.body.get("stages", 1)
    parts = {e.request_id for e in entries if e.kind == "stage" and e.body["root"] == reservation.request_id}
    done = sum(e.kind == "commit" and e.request_id in parts | {reservation.request_id} for e in entries)
    if 0 < done < of:
        return f"released {done} of {of} stages"
    return "released" if done else "reserved"


def _read_request(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: the request cannot be read ({error.strerror})") from None


def _plan(options: argparse.Namespace) -> None:
    from dpdd.client.ledger.ledger import NotCovered
    from dpdd.client.policy import Refused
    from dpdd.client.stages import reserved
    from dpdd.common.methods.registry import method
    from dpdd.common.privacy.events import describe
    from dpdd.common.wire.request import Kind, decode_request

    silo = _silo(options)
    request = decode_request(_read_request(options.request))
    try:
        settings, plan = silo.plan(request)
    except Refused as error:
        raise PolicyError(f"this silo would refuse ({error.reason.words}): {error}") from None
    distilled = request.kind is Kind.DISTILLED_SET
    whole, stages = reserved(plan), 1 if distilled else method(request.method).stages(settings)
    ledger = silo.ledger()
    try:
        if request.stage > 0:
            ledger.check_stage(request.id, request.first_stage().id, request.stage, whole)
        verdict = ledger.judge(request.first_stage().id, whole)
        remaining = ledger.status().remaining
    except NotCovered as error:
        raise PolicyError(f"this silo would refuse (not allowed): {error}") from None
    finally:
        ledger.close()
    fits = verdict is None or verdict.fits
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


def _log(options: argparse.Namespace) -> None:
    silo = _silo(options)
    ledger = silo.ledger()
    try:
        if options.accept_clock:
            ledger.note("clock")
        entries = ledger.entries()
    finally:
        ledger.close()
    _check_outbox(silo, entries)
    if options.json:
        print_json(
            [
                {"seq": e.seq, "time": e.time, "kind": e.kind, "request": e.request_id, "body": e.body, "hash": e.hash}
                for e in entries
            ]
        )
        return
    rows = [
        [str(e.seq), e.time[:19].replace("T", " "), e.kind, e.request_id[:12], _words(e), e.hash[:12]] for e in entries
    ]
    print(table(["#", "when (UTC)", "entry", "request", "what", "hash"], rows))
    print(f"{len(entries)} entries, each hashed over the one before and signed: the ledger is intact")


def _check_outbox(silo: Silo, entries: list[Entry]) -> None:
    """Every release that exists must be in the ledger: a ledger cut short at its end shows here."""
    from dpdd.common.errors import LedgerError

    reserved = {entry.request_id for entry in entries if entry.kind in ("reserve", "stage")}
    for request_id in silo.outbox.ids():
        if request_id not in reserved:
            raise LedgerError(
                f"the outbox holds a release for {request_id[:12]}, but the ledger has no entry for it: "
                f"the ledger was cut short or replaced"
            )


def _words(entry: Entry) -> str:
    from dpdd.common.privacy.events import describe, from_json

    body = entry.body
    match entry.kind:
        case "open" | "budget":
            return f"budget ε = {body['epsilon']:g}, δ = {body['delta']:g}, {body['composition']}"
        case "reserve":
            of = body.get("stages", 1)
            event = describe(from_json(body["event"])) + (f", for {of} stages" if of > 1 else "")
            return f"{body['run']}: {body['method']}, ε = {body['epsilon']:g}, {event}"
        case "stage":
            return f"stage {body['stage']} of {body['root'][:12]}, at no further cost"
        case "commit":
            return f"released, SHA-256 {body['release_sha256'][:12]}…"
        case "deny":
            return str(body["why"])
        case "clock":
            return "the operator accepts the clock"
        case _:
            return ""


def _requests(options: argparse.Namespace) -> None:
    silo = _silo(options)
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


def _decide(options: argparse.Namespace, kind: Any, body: dict[str, str]) -> None:
    silo = _silo(options)
    found = [request for request in silo.waiting() if request.id.startswith(options.id)]
    if len(found) != 1:
        problem = "no waiting request" if not found else "more than one waiting request"
        raise ConfigError(f"{problem} has an id that starts with {options.id!r}; `dpdd-client requests` lists them")
    ledger = silo.ledger()
    try:
        ledger.note(kind, found[0].id, body)
    finally:
        ledger.close()
    print(
        f"{'approved' if kind == 'approve' else 'denied'} {found[0].id[:16]} ({found[0].run}, ε = {found[0].epsilon:g})"
    )


def _approve(options: argparse.Namespace) -> None:
    _decide(options, "approve", {})


def _deny(options: argparse.Namespace) -> None:
    _decide(options, "deny", {"why": options.why})


def _answer(options: argparse.Namespace) -> None:
    from dpdd.client.durable import write_new
    from dpdd.common.progress import Console
    from dpdd.common.wire.answer import Refusal

    console = Console(options.quiet or options.json)
    answer = _silo(options).answer(_read_request(options.request), console)
    console.finish()
    if isinstance(answer, Refusal):
        raise PolicyError(f"refused ({answer.reason.words}): {answer.message}")
    try:
        written = write_new(options.out, answer.data)
    except OSError as error:
        raise DpddError(
            f"{options.out}: the release cannot be written ({error.strerror}); it is safe in the outbox"
        ) from None
    if not written and options.out.read_bytes() != answer.data:
        raise ConfigError(f"{options.out}: there is another file of that name")
    if options.json:
        print_json({"release": str(options.out), "bytes": len(answer.data), "request": options.request.name})
    elif not options.quiet:
        print(f"wrote {options.out} ({len(answer.data)} bytes); this request will always get these bytes")


def _join(options: argparse.Namespace) -> None:
    from dpdd.client.transport.join import join
    from dpdd.common.wire.exchange import Token

    if (options.token is None) != options.loopback_demo:
        raise ConfigError("give the join token that the coordinator gave you (--loopback-demo works without one)")
    text = sys.stdin.readline() if options.token == "-" else options.token
    silo = _silo(options)
    pinned = join(silo, options.address, None if text is None else Token.parse(text))
    print(f"silo {silo.settings.name} joined the coordinator at {pinned.address}")
    print(f"authority {pinned.authority_sha256} is pinned in {silo.folder / 'silo.toml'}")
    print(f"next: `dpdd-client run --silo {silo.folder}` answers its requests")


def _run(options: argparse.Namespace) -> None:
    import logging
    import signal

    from dpdd.client.transport.node import Node
    from dpdd.common.progress import Console

    logging.basicConfig(level=logging.WARNING, format="  %(message)s")
    node = Node(options.silo, Console(options.quiet), address=options.address)
    signal.signal(signal.SIGTERM, lambda *_: node.stop())
    try:
        node.run()
    finally:
        node.stop()


if __name__ == "__main__":
    sys.exit(main())
