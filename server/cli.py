"""`dpdd-server`, the coordinator's command: its sub-commands and their options. `dpdd.server.commands` runs them.

Only what runs imports torch or Flower, so that `--help` and the quick sub-commands stay quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpdd.common.cli import Commands
from dpdd.common.wire.exchange import JOIN_PORT, PORT
from dpdd.server.commands import files, pool, publishing, runs, selftest, silos, status
from dpdd.server.commands.options import public_data_option


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    commands = Commands("dpdd-server", "Coordinate silos, and build a dataset from their releases.", private=True)
    init = commands.add("init", silos.init, "make a coordinator's folder: its certificate authority and its keys")
    init.add_argument("folder", type=Path, help="the coordinator's folder")
    init.add_argument("--encrypt-key", action="store_true", help="make keys that need a passphrase")
    enrol = _own(commands, "enrol", silos.enrol, "expect a silo, and print its one-time join token")
    enrol.add_argument("name", help="the silo's name, as in its silo.toml")
    enrol.add_argument("--hours", type=float, default=72.0, help="how long the token is good for")
    revoke = _own(commands, "revoke", silos.revoke, "shut a silo out, now and for ever; its releases stay")
    revoke.add_argument("name", help="the silo's name")
    _own(
        commands,
        "renew",
        silos.renew,
        "renew the server's certificate, and say when the others end",
        "A server that is up renews its certificate by itself when two thirds of its life are over.",
    )
    rotate = _own(
        commands,
        "rotate-request-key",
        silos.rotate_request_key,
        "sign requests with a new key, which the old one endorses",
        "Silos follow from key to key, also after several rotations that they missed.",
    )
    rotate.add_argument(
        "--compromised",
        action="store_true",
        help="others may have the old key: endorse nothing with it; every silo has to join anew",
    )
    run = _own(commands, "run", runs.run, "serve the exchange, ask the silos, and build the dataset")
    run.add_argument("scenario", help="a shipped scenario's name or a .toml file")
    run.add_argument(
        "--out", type=Path, metavar="FOLDER", help="the run's folder (default: runs/NAME in the coordinator's)"
    )
    public_data_option(run)
    _serving_options(run)
    resume = _own(
        commands,
        "resume",
        runs.resume,
        "go on with a run: ask the silos that have not answered, and build the dataset again",
        "Silos whose release is in the store are not asked.",
    )
    resume.add_argument("folder", type=Path, help="the run's folder")
    _serving_options(resume)
    resume.add_argument(
        "--offline", action="store_true", help="serve nobody: build with the releases that are here already"
    )
    standing = _own(
        commands,
        "serve",
        runs.serve,
        "keep the exchange standing: silos stay connected, and submitted runs are worked off",
        "A run that fails is reported by `dpdd-server status`, and the next one starts. SIGTERM or Ctrl-C ends it.",
    )
    _listening_options(standing)
    submit = _own(commands, "submit", runs.submit, "put a run into the queue of `dpdd-server serve`")
    submit.add_argument("scenario", help="a shipped scenario's name or a .toml file")
    submit.add_argument(
        "--out", type=Path, metavar="FOLDER", help="the run's folder (default: runs/NAME in the coordinator's)"
    )
    public_data_option(submit)
    _asking_options(submit)
    request = _own(
        commands,
        "request",
        files.request,
        "write the request as a file, for silos without a network",
        "Writes the first stage that a known silo has not answered; enrol all silos of the run before.",
    )
    request.add_argument("scenario", help="a shipped scenario's name or a .toml file")
    request.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the request files go")
    request.add_argument(
        "--run",
        dest="folder",
        type=Path,
        metavar="FOLDER",
        help="the run's folder (default: runs/NAME in the coordinator's)",
    )
    public_data_option(request)
    request.add_argument("--stage", type=int, metavar="N", help="this stage, also when not all answered the one before")
    taking = _own(
        commands,
        "import",
        files.take,
        "take signed releases that came as files",
        "Each is verified by its silo's key; `dpdd-server resume RUN-FOLDER --offline` then builds the dataset.",
    )
    taking.add_argument("folder", type=Path, help="the run's folder")
    taking.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what `dpdd-client answer` wrote")
    taking.add_argument("--silo", metavar="NAME", help="a silo that has not joined, with its --key")
    taking.add_argument("--key", metavar="HEX", help="that silo's public key, as `dpdd-client init` shows it")
    shown = _own(commands, "status", status.status, "show the silos, what was asked, what came, and who is awaited")
    shown.add_argument("folder", type=Path, nargs="?", help="a run's folder (default: all in the coordinator's)")
    shown.add_argument("--json", action="store_true", help="as JSON")
    report = commands.add(
        "report",
        publishing.report,
        "write a finished run's report.html anew: what left each silo, what that means, what the dataset is worth",
        "One file for people, which fetches nothing. A run writes it by itself.",
    )
    report.add_argument("folder", type=Path, help="the run's folder, a simulation's too")
    export = commands.add(
        "export",
        publishing.export,
        "write what may be published: the dataset, its card, and the signed releases it cites",
        "Also the dataset as a Hugging Face folder (Parquet), croissant.json, and registry.yaml, a draft for the "
        "registry of DP deployments.",
    )
    export.set_defaults(publishes=True)
    export.add_argument("folder", type=Path, help="the run's folder")
    export.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where it goes; must not exist")
    export.add_argument("--imagefolder", action="store_true", help="a PNG file per image, too, in a folder per class")
    verify = commands.add(
        "verify",
        publishing.verify,
        "check a finished or exported run: hashes, signatures, and each release's noise, layout and ε by its request",
    )
    verify.add_argument("folder", type=Path, help="the run's folder (with card.json)")
    verify.add_argument("--thorough", action="store_true", help="recompute ε by a second accountant, too (Rényi)")
    verify.add_argument("--pool", metavar="IMAGES", help="a copy of the public pool: recompute its labels, too")
    joining = commands.add(
        "pool",
        pool.pool,
        "join the public images that a dataset names by hash with its soft labels, and say which are missing",
        "The images are somebody else's, so a dataset does not hold them. In Python: "
        "dpdd.common.synthesis.public_pool.PoolLabels.",
    )
    joining.add_argument("folder", type=Path, help="the run's folder, an export's, or its dataset/")
    joining.add_argument("images", metavar="IMAGES", help="a benchmark's name, an .npz archive, or a folder of images")
    joining.add_argument("--images-key", default="images", metavar="KEY", help="the array of images in an archive")
    joining.add_argument("--out", type=Path, metavar="FILE", help="write images and labels here, as .npz")
    joining.add_argument("--missing", type=Path, metavar="FILE", help="write the missing images' hashes here")
    tested = commands.add(
        "selftest",
        selftest.selftest,
        "compare a small synthesis and evaluation on a device with the CPU: do they agree, and how fast is it",
    )
    tested.add_argument(
        "--device", default="cuda", help="as torch calls it; cpu compares the CPU with itself (%(default)s)"
    )
    commands.names["scenario"] = _shipped
    return commands.main(arguments)


def _shipped() -> list[str]:
    from dpdd.server.run.scenario import shipped

    return list(shipped())


def _own(commands: Commands, name: str, run: Any, summary: str, details: str = "") -> argparse.ArgumentParser:
    parser = commands.add(name, run, summary, details)
    parser.add_argument("--coordinator", type=Path, default=Path(), metavar="FOLDER", help="the coordinator's folder")
    return parser


def _serving_options(parser: argparse.ArgumentParser) -> None:
    _listening_options(parser)
    _asking_options(parser)
    parser.add_argument("--json", action="store_true", help="print metrics.json instead of a summary")


def _asking_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deadline-minutes", type=float, metavar="N", help="instead of the scenario's")
    parser.add_argument("--no-rehearsal", action="store_true", help="ask the silos without a dry round before")


def _listening_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="listen here (0.0.0.0: everywhere)")
    parser.add_argument("--port", type=int, default=PORT, help="for silos that have joined; 0 takes a free one")
    parser.add_argument("--join-port", type=int, default=JOIN_PORT, help="for silos that join; 0 takes a free one")
    parser.add_argument(
        "--loopback-demo", action="store_true", help="INSECURE: anybody on this machine may join as any silo"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what synthesises images")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that synthesise images (default: one per processor or GPU)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


if __name__ == "__main__":
    sys.exit(main())
