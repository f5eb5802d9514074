"""`dpdd-client`, the silo operator's command: its sub-commands and their options. `dpdd.client.commands` runs them.

Only what runs imports torch or Flower, so that `--help` and the quick sub-commands stay quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dpdd.client.commands import audit, coordinator, describe, ledger, recover, requests, setup
from dpdd.common.cli import Commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    commands = Commands("dpdd-client", "Keep a silo: its private data, its budget, and what leaves it.", private=True)
    init = commands.add(
        "init", setup.init, "make a silo folder: silo.toml to fill in, then (run it again) its key and its ledger"
    )
    init.add_argument("folder", type=Path, help="the silo's folder")
    init.add_argument("--encrypt-key", action="store_true", help="make a key that needs a passphrase")
    init.add_argument("--name", help="the silo's name (default: the folder's)")
    commands.add(
        "describe",
        describe.describe,
        "propose the columns of a table, as TOML for silo.toml, from the names and types of its columns",
        "No value is read, so bounds and categories are yours to fill in: they are public. With --look they are "
        "proposed from your records; then nothing protects what you paste.",
        add_options=describe.add_options,
    )
    _silo_command(
        commands, "preflight", setup.preflight, "read the data, check the policy, and say what is wrong", json=True
    )
    auditing = _silo_command(
        commands,
        "audit",
        audit.audit,
        "attack a release of these records before the silo goes live: made-up records among them, guessed from it",
        "For a folder that has joined no coordinator and spent nothing; what is released is attacked and thrown away.",
        json=True,
    )
    audit.add_options(auditing)
    budget = _silo_command(commands, "budget", ledger.budget, "show what is spent and what is left", json=True)
    budget.add_argument(
        "--accept-change", action="store_true", help="record in the ledger that silo.toml has a new budget"
    )
    plan = _silo_command(
        commands,
        "plan",
        requests.plan,
        "show what a request would cost and take; records are counted, not read",
        json=True,
    )
    plan.add_argument("request", help="a request file (*.request), or the first characters of a waiting request's id")
    plan.add_argument("--quick", action="store_true", help="do not try the mechanism, and plan without limits")
    log = _silo_command(
        commands, "log", ledger.log, "show the ledger, verified against its hashes and signatures", json=True
    )
    log.add_argument("--accept-clock", action="store_true", help="record that the clock was wrong and is right now")
    _silo_command(commands, "requests", requests.requests, "list the requests that wait for your decision", json=True)
    approve = _silo_command(commands, "approve", requests.approve, "allow a request that waits")
    approve.add_argument("id", help="the request's id, or its first characters")
    deny = _silo_command(commands, "deny", requests.deny, "refuse a request that waits")
    deny.add_argument("id", help="the request's id, or its first characters")
    deny.add_argument("--why", required=True, help="what the coordinator is told")
    answer = _silo_command(commands, "answer", requests.answer, "answer a request from a file, into a file", json=True)
    answer.add_argument("request", type=Path, help="a request file (*.request)")
    answer.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the signed release goes")
    answer.add_argument("--quiet", action="store_true", help="no progress")
    join = _silo_command(commands, "join", coordinator.join, "join a coordinator with the token that it gave you")
    join.add_argument("address", help="the coordinator's HOST:PORT for joining")
    join.add_argument("token", nargs="?", help="the one-time join token, or - to read it from stdin")
    join.add_argument(
        "--loopback-demo", action="store_true", help="INSECURE: trust whoever listens on 127.0.0.1, without a token"
    )
    renew = _silo_command(
        commands,
        "renew",
        coordinator.renew,
        "get a new certificate before the old one ends",
        "`run` does so by itself when two thirds of the certificate's life are over.",
    )
    renew.add_argument("--address", metavar="HOST:PORT", help="where the coordinator listens now, if it moved")
    run = _silo_command(
        commands,
        "run",
        coordinator.run,
        "answer the coordinator's requests until you stop it",
        "Runs the installed mechanisms and nothing else; reconnects by itself; may be stopped at any moment.",
    )
    run.add_argument("--address", metavar="HOST:PORT", help="where the coordinator listens now, if it moved")
    run.add_argument("--quiet", action="store_true", help="no progress")
    recovery = _silo_command(
        commands,
        "recover",
        recover.recover,
        "rebuild a ledger that is gone or too old, from the outbox and the coordinator",
        "Never lowers what was spent; may be run again. `--dry-run` shows what it would do.",
        json=True,
    )
    recovery.add_argument("--dry-run", action="store_true", help="change nothing")
    recovery.add_argument(
        "--write-off", action="store_true", help="where reservations stay missing: close the budget for good, and go on"
    )
    where = recovery.add_mutually_exclusive_group()
    where.add_argument("--from-coordinator", action="store_true", help="ask it too (the default after `join`)")
    where.add_argument("--offline", action="store_true", help="go by the outbox alone")
    recovery.add_argument("--address", metavar="HOST:PORT", help="where the coordinator listens now, if it moved")
    return commands.main(arguments)


def _silo_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
    details: str = "",
    *,
    json: bool = False,
) -> argparse.ArgumentParser:
    parser = commands.add(name, run, summary, details)
    parser.add_argument("--silo", type=Path, default=Path(), metavar="FOLDER", help="the silo's folder")
    if json:
        parser.add_argument("--json", action="store_true", help="as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
