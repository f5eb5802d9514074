"""`init` and `preflight`: a new silo folder, and whether its data and policy are in order."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dpdd.client.commands.options import open_silo
from dpdd.common.cli import print_json, table
from dpdd.common.errors import ConfigError, WireError

if TYPE_CHECKING:
    from dpdd.client.config import SiloSettings
    from dpdd.client.ledger.ledger import BudgetStatus
    from dpdd.client.records import Description
    from dpdd.client.silo import Silo

LEAST_SHARE = 0.1
"""Of the declared range: where values fill less of it, that range is probably wrong."""

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
# Releases say how many entries the ledger has and how many requests were paid for, so that the coordinator notices when
# an old copy of the ledger was put back. false keeps that from it.
# tell_ledger_position = true

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
    from dpdd.client.records import describe, examples, load
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
    records = load(silo.settings.data, silo.folder)
    description, few = describe(records, silo.settings.data, console), examples(records)
    methods = obstacles(silo, console)
    console.finish()
    ready = any(why is None for why in methods.values())
    findings = [*_findings(silo.settings, description), *key_warnings(silo), *anchored]
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
                "methods": methods,
                "epsilon_remaining": status.remaining,
                "findings": findings,
            }
        )
    else:
        _show(silo.settings, description, few, methods, status)
        for finding in findings:
            print(f"note: {finding}")
        print(("ready, with the notes above" if findings else "ready") if ready else "not ready")
    if not ready:
        raise ConfigError(
            f"{options.silo / 'silo.toml'}: not ready, as none of the methods that the policy allows can use records "
            f"of shape {silo.settings.data.shape}"
        )


def key_warnings(silo: Silo) -> list[str]:
    """What should be done about the silo's certificate and state folder soon."""
    from datetime import UTC, datetime

    from dpdd.client.transport.channel import Files
    from dpdd.common.files.certificates import expiry_warning, load_certificate
    from dpdd.common.files.private import folder_warning

    warnings, path = folder_warning(silo.folder / "state"), Files(silo.folder).certificate
    if path.exists():
        ends = load_certificate(path, "`dpdd-client join` gets a new one").not_valid_after_utc
        remedy = "ask the coordinator for a new token, and join again"
        warnings += expiry_warning("this silo", ends, datetime.now(UTC), remedy)
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
    methods: dict[str, str | None],
    status: BudgetStatus,
) -> None:
    """What `preflight` saw, for the operator."""
    print(
        f"silo {settings.name}: {description.count} records of shape {tuple(description.shape)}, values in "
        f"[{description.minimum}, {description.maximum}]"
    )
    print(table(["class", "records"], [[name, str(count)] for name, count in description.per_class.items()]))
    declared = settings.public_counts
    print(
        f"(these counts are {'declared public' if declared else 'private: they are shown here only, and never sent'})"
    )
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
