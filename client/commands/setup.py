"""`init` and `preflight`: a new silo folder, and whether its data and policy are in order."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpdd.client.commands.options import open_silo
from dpdd.common.cli import print_json, table
from dpdd.common.errors import ConfigError, WireError

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

# [evaluation]
# A share of the records that no other release reads, so that models can be evaluated on them (which policy.methods must
# allow as "evaluation", and which costs budget). Choose it before the first release: it cannot change afterwards.
# holdout = 0.2
"""


def init(options: argparse.Namespace) -> None:
    """Write a `silo.toml` to fill in; once there is one, make the signing key and the ledger."""
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


def preflight(options: argparse.Namespace) -> None:
    """Read the data, compare it with `silo.toml`, and show what was noticed."""
    from dpdd.client.records import describe, load

    silo = open_silo(options)
    findings: list[str] = []
    ledger = silo.ledger()
    try:
        ledger.check_budget()
        silo.check_holdout(ledger)
        status = ledger.status()
    finally:
        ledger.close()
    description = describe(load(silo.settings.data, silo.folder), silo.settings.data)
    policy = silo.settings.policy
    if description.count == 0:
        findings.append("the data holds no record: a release would be noise only")
    empty = [name for name, count in description.per_class.items() if count == 0]
    if empty and description.count:
        findings.append(f"no record of class {', '.join(empty)}: that part of a release would be noise only")
    if description.non_finite:
        findings.append(f"{description.non_finite} records have NaN or infinite values and will contribute nothing")
    if silo.settings.public_counts and silo.settings.public_counts != tuple(description.per_class.values()):
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
                "records": description.count,
                "per_class": description.per_class,
                "shape": list(description.shape),
                "minimum": description.minimum,
                "maximum": description.maximum,
                "non_finite": description.non_finite,
                "epsilon_remaining": status.remaining,
                "findings": findings,
            }
        )
        return
    print(
        f"silo {silo.settings.name}: {description.count} records of shape {tuple(description.shape)}, values in "
        f"[{description.minimum}, {description.maximum}]"
    )
    print(table(["class", "records"], [[name, str(count)] for name, count in description.per_class.items()]))
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
