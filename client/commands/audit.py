"""`audit`: how much a release of these records would give away of canaries among them, before the silo goes live."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpdd.client.commands.options import read_request
from dpdd.common.cli import print_json
from dpdd.common.errors import ConfigError, DpddError

if TYPE_CHECKING:
    from dpdd.client.config import SiloSettings
    from dpdd.common.wire.request import ReleaseRequest


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the sub-command."""
    parser.add_argument("request", type=Path, nargs="?", help="a request file (*.request), instead of --method")
    parser.add_argument("--method", help="a method at its default settings (default: the policy's first)")
    parser.add_argument("--epsilon", type=float, help="the budget of the release (default: the policy's per request)")
    parser.add_argument("--canaries", type=int, default=1000, help="how many records are made up and thrown coins for")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the bounds on ε")
    parser.add_argument("--seed", type=int, help="repeatable coins and noise; by default both are fresh")
    parser.add_argument(
        "--alone", action="store_true", help="do not read the silo's records: canaries are all there is"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON, too")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def audit(options: argparse.Namespace) -> None:
    """Attack a release of a scratch silo with a copy of the records and canaries; nothing is spent here."""
    import json
    import secrets

    from dpdd.client.auditing.one_run import AuditPlan
    from dpdd.client.auditing.one_run import audit as run
    from dpdd.client.auditing.report import as_json, as_text
    from dpdd.client.config import load_settings
    from dpdd.client.records import load
    from dpdd.common.progress import Console

    settings = load_settings(options.silo)
    refuse_live(options.silo, settings)
    asked = _request(options, settings)
    seed = secrets.randbits(63) if options.seed is None else options.seed
    plan = AuditPlan(options.canaries, options.confidence, seed, noise_seed=options.seed)
    console = Console(quiet=options.quiet or options.json)
    others = None if options.alone else load(settings.data, options.silo)
    result = run(asked, plan, others, console)
    console.finish()
    if options.out is not None:
        options.out.write_text(json.dumps(as_json(result), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.json:
        print_json(as_json(result))
    else:
        print(as_text(result))
        print("The release was made and attacked in a scratch folder that is gone: no budget of this silo was spent.")
    if result.refuted:
        raise DpddError("the audit refutes what this build claims: do not go live with it, and report it")


def refuse_live(folder: Path, settings: SiloSettings) -> None:
    """ConfigError for a silo that may have people's budget to lose: one that joined a coordinator, or has spent."""
    why = None
    if settings.coordinator is not None:
        why = "this silo has joined a coordinator"
    elif any((folder / "state" / "outbox").glob("*.release")):
        why = "this silo has released something"
    elif (folder / "state" / "ledger.sqlite").exists():
        from dpdd.client.silo import Silo

        ledger = Silo(folder).ledger()
        try:
            if any(entry.kind in ("reserve", "recovered") for entry in ledger.entries()):
                why = "this silo's ledger has been used"
        finally:
            ledger.close()
    if why is not None:
        raise ConfigError(
            f"{folder}: {why}, and an audit is for before that; copy silo.toml and the data to another folder, without "
            "state/ and [coordinator], and audit the copy"
        )


def _request(options: argparse.Namespace, settings: SiloSettings) -> ReleaseRequest:
    """What is to be audited: a file's request about such data, or a method at its default settings."""
    from dpdd.client import policy
    from dpdd.client.policy import Refused
    from dpdd.common.methods.base import Method, RunDescription
    from dpdd.common.methods.registry import query
    from dpdd.common.methods.request_plan import settings_of
    from dpdd.common.models import backbone
    from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request

    if options.request is not None:
        if options.method is not None:
            raise ConfigError("name a request file or a --method, not both")
        asked = decode_request(read_request(options.request)).first_stage()
        asked = asked if options.epsilon is None else replace(asked, epsilon=options.epsilon)
    else:
        name = options.method or settings.policy.methods[0]
        chosen = query(name)
        if not isinstance(chosen, Method):
            raise ConfigError(f"{name} makes no dataset, so there is nothing to audit by default; name a request file")
        data, epsilon = settings.data, options.epsilon or settings.policy.epsilon_per_request
        run = RunDescription(data.classes, data.shape, public_seed=0, table=data.table)
        own = chosen.resolve(chosen.settings({}), run, epsilon, settings.budget.delta)
        pinned = chosen.backbones(own)
        asked = ReleaseRequest(
            run="audit",
            method=name,
            settings=own.on_wire(),
            epsilon=epsilon,
            delta=settings.budget.delta,
            classes=data.classes,
            shape=data.shape,
            public_seed=0,
            backbone_sha256=bytes.fromhex(backbone.load(pinned[0]).card.sha256) if pinned else b"",
            kind=Kind.STATISTICS,
            table=data.table,
        )
    data = settings.data
    if (asked.classes, asked.shape, asked.table) != (data.classes, data.shape, data.table):
        raise ConfigError(f"{options.request}: the request is about other classes, shapes or columns than this silo's")
    try:
        policy.check_backbones(query(asked.method).backbones(settings_of(asked)), settings)
    except Refused as error:
        raise ConfigError(str(error)) from None
    return asked
