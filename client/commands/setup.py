"""`init` and `preflight`: a new silo folder, and whether its data and policy are in order."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dpdd.client.commands.options import open_silo
from dpdd.common.cli import print_json, table
from dpdd.common.errors import ConfigError, WireError

if TYPE_CHECKING:
    from dpdd.client.config import SiloSettings
    from dpdd.client.ledger.ledger import BudgetStatus
    from dpdd.client.records import ColumnFacts, Description, Intake
    from dpdd.client.silo import Silo

LEAST_SHARE = 0.1
"""Of the declared range: where values fill less of it, that range is probably wrong."""

TEMPLATE = """\
# A silo: what data it has, what it will ever spend on it, and what it lets others ask.
# `dpdd-client preflight` checks this file and the data; nothing leaves this machine for that.
name = "{name}"

[data]
# One of: image-folder (a sub-folder per class), idx, npz, csv, parquet, sql. Paths are relative to this file.
format = "image-folder"
path = "images"
# The class list and the shape of one record (channels, height, width) are public: every silo of a run has the same.
classes = ["benign", "malignant"]
shape = [1, 28, 28]
# Images of another size: "exact" refuses them, "resize" stretches them, "crop" scales them and cuts the centre out,
# "pad" scales them and fills up with zeros. The same rule in every silo of a run.
# fit = "resize"
# The pixel values that stand for black and white: [0, 65535] for 16-bit images, [0, 1] for floats, a window such as
# [-1000, 400] for DICOM. 8-bit images need none.
# value_range = [0, 255]
# idx: the file of labels beside path.
# labels = "labels-idx1-ubyte"
# npz: the arrays of images and of labels.
# images_key = "images"
# labels_key = "labels"
# csv and parquet: the column of labels; and the column of image files (csv) or of encoded images (parquet). Without
# image_column, every column but the label is a pixel.
# label_column = "label"
# image_column = "image"
# A table (csv, parquet, sql) has columns instead of classes and shape; `dpdd-client describe FILE` proposes them. What
# is declared here is public, and the same in every silo of a run.
# kind = "table"
# label = "sick"
# columns = [{{ name = "age", type = "numeric", low = 0, high = 100 }},
#   {{ name = "sick", type = "categorical", categories = ["no", "yes"] }}]
# csv of a table: what stands between cells, and the encoding of its text.
# separator = ";"
# encoding = "latin-1"
# sql: a query of a database, in place of path; its password is in a variable or a file.
# url = "postgresql://reader@localhost/ward"
# query = "SELECT age, sick FROM patients"
# password_env = "WARD_PASSWORD"
# password_file = "password.txt"

[budget]
# Over all runs and coordinators, for ever. Neighbours: {neighbours}.
epsilon = 1.0
delta = 1e-5

[policy]
methods = [{methods}]
epsilon_per_request = 1.0
# "ask": every request waits for `dpdd-client approve ID`; "auto": what the policy allows is answered at once.
approval = "ask"
# Ceilings on what a coordinator can make this silo do; leave out what needs none.
# least_epsilon_per_request = 0.05
# requests_per_day = 20
# most_bytes = 50_000_000
# outbox_quota = 1_000_000_000
# Ceilings of the worker, the process that reads records: bytes of memory, bytes of a file that it writes, CPU seconds.
# most_memory = 4_000_000_000
# most_disk = 20_000_000_000
# most_cpu_seconds = 3600
# Public backbones in files of your own that requests may name, beside those that ship with dpdd.
# backbones = ["/srv/backbones/mine"]
# Public datasets on this machine that a set made here may contain images of (private-evolution with a pool).
# public_datasets = ["tinyimagenet32"]
# Releases say how many entries the ledger has and how many requests were paid for, so that the coordinator notices when
# an old copy of the ledger was put back. false keeps that from it.
# tell_ledger_position = true

# [worker]
# Seconds (by the clock) that an answer may take, and CPU seconds that planning one may take; without isolation the node
# reads records itself, and there are no limits.
# most_seconds = 86400
# planning_seconds = 120
# Bytes of embeddings that stay from one stage of a request to the next, in memory or in a file without a name; 0: none.
# keep_embeddings = 1073741824
# isolation = true

# [evaluation]
# A share of the records that no other release reads, so that models can be evaluated on them (which policy.methods must
# allow as "evaluation", and which costs budget). Choose it before the first release: it cannot change afterwards.
# holdout = 0.2

# [ledger]
# Where a small file remembers the ledger's newest entry, so that an old copy of it is noticed: outside of state/, and
# not in its backup. Left out, it is in ~/.local/state/dpdd/.
# anchor = "../north.anchor"

# [keys]
# The first line of this file is the passphrase of a key that was made with `dpdd-client init --encrypt-key`.
# passphrase_file = "/run/secrets/dpdd-passphrase"
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
    silo = Silo.initialise(folder, encrypt_key=options.encrypt_key)
    print(f"silo {silo.settings.name}: {'ledger and key are there' if had_ledger else 'made its key and its ledger'}")
    print(f"public key {silo.public_key.hex()}")
    print(f"next: `dpdd-client preflight --silo {folder}` reads the data and checks the policy")


def preflight(options: argparse.Namespace) -> None:
    """Read the data, compare it with `silo.toml`, and show what was noticed; ConfigError where no method can use it."""
    from dpdd.client.applicability import obstacles
    from dpdd.client.records import Intake, column_facts, describe, examples, load
    from dpdd.common.progress import Console

    silo = open_silo(options)
    ledger = silo.ledger()
    try:
        ledger.verify()
        anchored = anchor_warnings(silo)
        silo.check_ledger(ledger)
        ledger.follow_anchor()
        status = ledger.status()
    finally:
        ledger.close()
    console = Console(quiet=options.json)
    data, intake = silo.settings.data, Intake()
    records = load(data, silo.folder, intake)
    description, few = describe(records, data, console), examples(records)
    columns = [] if data.table is None else column_facts(records, data.table.features)
    methods = obstacles(silo, console)
    console.finish()
    ready = any(why is None for why in methods.values())
    findings = [*_findings(silo.settings, description), *table_findings(columns, intake)]
    findings += [*key_warnings(silo), *anchored]
    if status.remaining <= 0.0:
        findings.append("the budget is used up: every new request will be refused")
    if options.json:
        print_json(
            {
                "silo": silo.settings.name,
                "ready": ready,
                "records": description.count,
                "per_class": description.per_class,
                "shape": list(description.shape),
                "minimum": description.minimum,
                "maximum": description.maximum,
                "non_finite": description.non_finite,
                "examples": few,
                "columns": [asdict(each) for each in columns],
                "left_out": {"unreadable": intake.unreadable, **intake.dropped},
                "methods": methods,
                "epsilon_remaining": status.remaining,
                "findings": findings,
            }
        )
    else:
        _show(silo.settings, description, few, columns, methods, status)
        for finding in findings:
            print(f"note: {finding}")
        print(("ready, with the notes above" if findings else "ready") if ready else "not ready")
    if not ready:
        raise ConfigError(
            f"{options.silo / 'silo.toml'}: not ready, as none of the methods that the policy allows can use records "
            f"of shape {silo.settings.data.shape}"
        )


def table_findings(columns: Sequence[ColumnFacts], intake: Intake) -> list[str]:
    """What an operator should look at in a table: records that are left out, and columns that hardly say anything."""
    findings = [each.finding for each in columns if each.finding is not None]
    for column in columns:
        if column.empty and len(column.empty) > 1:
            few = ", ".join(repr(name) for name in column.empty[:4]) + (", ..." if len(column.empty) > 4 else "")
            findings.append(f"column {column.name!r}: no record has {few}")
    for name, count in intake.dropped.items():
        findings.append(f"{count} records are left out: they have no value in {name!r}, where none may be missing")
    if intake.unreadable:
        findings.append(
            f"{intake.unreadable} lines of the file are no records: they have another number of cells than the header, "
            "a quote that is not closed, or are too long"
        )
    return findings


def key_warnings(silo: Silo) -> list[str]:
    """What should be done about the silo's certificate, its coordinator's authority and its state folder soon."""
    from datetime import UTC, datetime

    from dpdd.client.transport.channel import Files
    from dpdd.common.files.certificates import expiry_warning, life, load_certificate
    from dpdd.common.files.private import folder_warning

    warnings, files, now = folder_warning(silo.folder / "state"), Files(silo.folder), datetime.now(UTC)
    if files.certificate.exists():
        mine = life(files.shown_certificate)
        remedy = "`dpdd-client renew` gets a new one, and so does `dpdd-client run`"
        if mine[1] < now:
            remedy = "ask the coordinator for a new token, and join again"
        warnings += expiry_warning("this silo", mine, now, remedy)
    if files.authority.exists():
        authority = load_certificate(files.authority, "`dpdd-client join` gets it")
        remedy = "the coordinator has to make a new one, which this silo joins"
        warnings += expiry_warning("the coordinator's authority", life(authority), now, remedy)
    return warnings


def anchor_warnings(silo: Silo) -> list[str]:
    """What the anchor cannot vouch for."""
    anchor = silo.anchor
    if anchor is None:
        return []
    anchored = anchor.read()
    if anchored is None:
        return [
            f"there was no anchor of the ledger ({anchor.path}), and one begins now: if this silo did not just move to "
            "this machine, find out who removed it, and whether the ledger is the newest"
        ]
    if anchored.begun_at > 1:
        return [
            f"the anchor of the ledger ({anchor.path}) began at entry {anchored.begun_at}, on {anchored.begun[:10]}: "
            "it cannot tell whether the ledger was the newest then"
        ]
    return []


def _findings(settings: SiloSettings, description: Description) -> list[str]:
    """What an operator should look at, though releases could be made."""
    findings = []
    if description.count == 0:
        findings.append("the data holds no record: a release would be noise only")
    empty = [name for name, count in description.per_class.items() if count == 0]
    if empty and description.count:
        findings.append(f"no record of class {', '.join(empty)}: that part of a release would be noise only")
    if description.non_finite:
        findings.append(f"{description.non_finite} records have NaN or infinite values and will contribute nothing")
    if not settings.data.is_table and description.minimum is not None and description.maximum is not None:
        share = description.maximum - description.minimum
        if share < LEAST_SHARE:
            low, high = settings.data.value_range
            findings.append(
                f"the values fill {share:.1%} of the declared range ({low:g}, {high:g}): releases would see hardly any "
                "difference between records; declare as value_range what the pixels really have"
            )
    if settings.public_counts and settings.public_counts != tuple(description.per_class.values()):
        findings.append("policy.public_counts declares other counts than the data has")
    if settings.policy.epsilon_per_request > settings.budget.epsilon:
        findings.append("policy.epsilon_per_request is larger than the whole budget")
    if not settings.policy.methods:
        findings.append("policy.methods is empty: every request will be refused")
    if settings.simulation is not None:
        findings.append("[simulation] is set: releases of this silo protect nobody")
    return findings


def _show(
    settings: SiloSettings,
    description: Description,
    few: list[str],
    columns: list[ColumnFacts],
    methods: dict[str, str | None],
    status: BudgetStatus,
) -> None:
    """What `preflight` saw, for the operator."""
    what = f"of {len(columns)} columns and a label"
    if not columns:
        what = f"of shape {tuple(description.shape)}, values in [{description.minimum}, {description.maximum}]"
    print(f"silo {settings.name}: {description.count} records {what}")
    print(table(["class", "records"], [[name, str(count)] for name, count in description.per_class.items()]))
    declared = settings.public_counts
    print(
        f"(these counts are {'declared public' if declared else 'private: they are shown here only, and never sent'})"
    )
    if columns:
        cells = [[each.name, f"{each.missing:.1%}", each.largest, f"{each.share:.1%}"] for each in columns]
        print(table(["column", "missing", "most frequent", "share"], cells))
        print("(these, too, are shown here only)")
    if few:
        print("some records as they come, and what is done with them:")
        for line in few:
            print(f"  {line}")
    print(
        f"budget: ε = {status.remaining:.4g} of {status.budget.epsilon:g} left at δ = {status.budget.delta:g}; "
        f"approval: {settings.policy.approval}"
    )
    usable = [name for name, why in methods.items() if why is None]
    print(f"methods: {', '.join(usable) or 'none'}")
    for name, why in methods.items():
        if why is not None:
            print(f"  not {name}: {why}")
