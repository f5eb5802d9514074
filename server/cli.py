"""`dpdd-server`: the coordinator's command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import Commands, facts, print_json, table
from dpdd.common.errors import ConfigError, DataError, IntegrityError
from dpdd.common.wire.exchange import JOIN_PORT, PORT
from dpdd.server.report.product import in_words

if TYPE_CHECKING:
    from dpdd.server.run.store import Asked
    from dpdd.server.transport.coordinator import Coordinator


LOG_BYTES = 10_000_000
_INDEX = Path("store", "index.sqlite")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    commands = Commands("dpdd-server", "Coordinate silos, and build a dataset from their releases.")
    init = commands.add("init", _init, "make a coordinator's folder: its certificate authority and its keys")
    init.add_argument("folder", type=Path, help="the coordinator's folder")
    enrol = _own(commands, "enrol", _enrol, "expect a silo, and print its one-time join token")
    enrol.add_argument("name", help="the silo's name, as in its silo.toml")
    enrol.add_argument("--hours", type=float, default=72.0, help="how long the token is good for")
    revoke = _own(commands, "revoke", _revoke, "shut a silo out, now and for ever; its releases stay")
    revoke.add_argument("name", help="the silo's name")
    run = _own(commands, "run", _run, "serve the exchange, ask the silos, and build the dataset")
    run.add_argument("scenario", help="a shipped scenario's name or a .toml file")
    run.add_argument(
        "--out", type=Path, metavar="FOLDER", help="the run's folder (default: runs/NAME in the coordinator's)"
    )
    _serving_options(run)
    resume = _own(
        commands,
        "resume",
        _resume,
        "go on with a run: ask the silos that have not answered, and build the dataset again",
        "Silos whose release is in the store are not asked.",
    )
    resume.add_argument("folder", type=Path, help="the run's folder")
    _serving_options(resume)
    status = _own(commands, "status", _status, "show the silos, what was asked, what came, and who is awaited")
    status.add_argument("folder", type=Path, nargs="?", help="a run's folder (default: all in the coordinator's)")
    status.add_argument("--json", action="store_true", help="as JSON")
    export = commands.add(
        "export", _export, "copy what may be published: the dataset, its card, and the signed releases it cites"
    )
    export.add_argument("folder", type=Path, help="the run's folder")
    export.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where it goes; must not exist")
    verify = commands.add(
        "verify",
        _verify,
        "check a finished run: the dataset's and its teacher's hash, every release's signature and guarantee",
    )
    verify.add_argument("folder", type=Path, help="the run's folder (with card.json)")
    return commands.main(arguments)


def _own(commands: Commands, name: str, run: Any, summary: str, details: str = "") -> argparse.ArgumentParser:
    parser = commands.add(name, run, summary, details)
    parser.add_argument("--coordinator", type=Path, default=Path(), metavar="FOLDER", help="the coordinator's folder")
    return parser


def _serving_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="listen here (0.0.0.0: everywhere)")
    parser.add_argument("--port", type=int, default=PORT, help="for silos that have joined; 0 takes a free one")
    parser.add_argument("--join-port", type=int, default=JOIN_PORT, help="for silos that join; 0 takes a free one")
    parser.add_argument("--deadline-minutes", type=float, metavar="N", help="instead of the scenario's")
    parser.add_argument(
        "--loopback-demo", action="store_true", help="INSECURE: anybody on this machine may join as any silo"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what synthesises images")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that synthesise images (default: one per processor or GPU)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print metrics.json instead of a summary")


def _coordinator(options: argparse.Namespace) -> Coordinator:
    from dpdd.server.transport.coordinator import Coordinator

    return Coordinator(options.coordinator)


def _init(options: argparse.Namespace) -> None:
    from dpdd.server.transport.coordinator import Coordinator

    had = (options.folder / "authority.pem").exists()
    coordinator = Coordinator.initialise(options.folder)
    print(f"coordinator in {options.folder}: {'authority and keys are there' if had else 'made an authority and keys'}")
    print(f"authority {coordinator.authority.fingerprint.hex()}")
    print(f"next: `dpdd-server enrol NAME --coordinator {options.folder}` for each silo")


def _enrol(options: argparse.Namespace) -> None:
    from datetime import timedelta

    if not 0 < options.hours <= 24 * 365:
        raise ConfigError(f"a token is good for more than 0 and at most {24 * 365} hours, not {options.hours:g}")
    token = _coordinator(options).enrol(options.name, timedelta(hours=options.hours))
    print(token)
    print(
        f"give this token to the operator of {options.name}, and to nobody else: it is good once, within "
        f"{options.hours:g} h, for `dpdd-client join HOST:{JOIN_PORT} TOKEN`",
        file=sys.stderr,
    )


def _revoke(options: argparse.Namespace) -> None:
    _coordinator(options).registry.revoke(options.name)
    print(f"silo {options.name} is revoked: its certificate is worth nothing from now on; its releases stay")


def _run(options: argparse.Namespace) -> None:
    from dpdd.server.run.scenario import load_scenario, shipped

    scenario = load_scenario(options.scenario)
    path = shipped().get(options.scenario, Path(options.scenario))
    _serve(options, path, options.out or options.coordinator / "runs" / scenario.name)


def _resume(options: argparse.Namespace) -> None:
    from dpdd.server.transport.running import scenario_of

    _serve(options, scenario_of(options.folder), options.folder)


def _serve(options: argparse.Namespace, scenario: Path, folder: Path) -> None:
    import signal

    from dpdd.common.progress import Console
    from dpdd.server.transport import tls_log

    if options.loopback_demo and options.bind != "127.0.0.1":
        raise ConfigError("--loopback-demo lets anybody join: it listens on 127.0.0.1 and nowhere else")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    coordinator = _coordinator(options)
    tls_log.follow()
    _log_to(coordinator.log_file)

    from dpdd.common.synthesis.runner import SynthesisRunner
    from dpdd.server.report.card import budget_cells
    from dpdd.server.transport import running
    from dpdd.server.transport.service import Address

    console = Console(quiet=options.quiet or options.json)
    metrics = running.run(
        coordinator,
        scenario,
        folder,
        console,
        address=Address(options.bind, options.port, options.join_port),
        deadline_minutes=options.deadline_minutes,
        open_enrolment=options.loopback_demo,
        runner=SynthesisRunner(device=options.device, workers=options.workers),
    )
    if options.json:
        print_json(metrics)
        return
    rows = [[*budget_cells(row), row["accountant"]] for row in metrics["privacy"]]
    print(table(["silo", "ε", "δ", "accountant"], rows))
    print(f"{in_words(metrics['dataset'])}: {folder / 'dataset'}; the card: {folder / 'CARD.md'}")


def _log_to(path: Path) -> None:
    """The exchange's log: a file beside the registry (of bounded size: strangers write it), and warnings on stderr."""
    import logging
    from logging.handlers import RotatingFileHandler

    log = logging.getLogger("dpdd.exchange")
    log.setLevel(logging.INFO)
    log.propagate = False
    kept = RotatingFileHandler(path, encoding="utf-8", maxBytes=LOG_BYTES, backupCount=4)
    shown = logging.StreamHandler()
    kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    shown.setFormatter(logging.Formatter("  %(message)s"))
    shown.setLevel(logging.WARNING)
    log.handlers[:] = [kept, shown]


def _status(options: argparse.Namespace) -> None:
    coordinator = _coordinator(options)
    silos = coordinator.registry.silos()
    serving = coordinator.serving()
    runs = {str(folder): _asked(folder) for folder in _run_folders(options)}
    if options.json:
        print_json(
            {
                "authority": coordinator.authority.fingerprint.hex(),
                "serving": serving,
                "silos": [
                    {
                        "name": silo.name,
                        "state": silo.state,
                        "certificate_expires": silo.certificate_expires,
                        "last_seen": silo.last_seen,
                        "doing": silo.doing,
                    }
                    for silo in silos
                ],
                "runs": {
                    name: [
                        {
                            "request": row.request_id,
                            "stage": stage,
                            "silo": row.silo,
                            "state": row.state,
                            "changed": row.changed,
                        }
                        for row, stage in rows
                    ]
                    for name, rows in runs.items()
                },
            }
        )
        return
    where = (
        f"{serving['host']}:{serving['port']} (new silos: {serving['join_port']})" if serving else "no run is serving"
    )
    print(facts({"authority": coordinator.authority.fingerprint.hex(), "serving": where}))
    if silos:
        print()
        print(
            table(
                ["silo", "state", "last seen (UTC)", "doing", "certificate until"],
                [
                    [
                        silo.name,
                        silo.state,
                        (silo.last_seen or "never")[:19].replace("T", " "),
                        silo.doing,
                        (silo.certificate_expires or "")[:10],
                    ]
                    for silo in silos
                ],
            )
        )
    for name, rows in runs.items():
        print(f"\n{name}")
        print(
            table(
                ["request", "stage", "silo", "state", "since (UTC)"],
                [
                    [row.request_id[:16], str(stage), row.silo, _words(row), row.changed[:19].replace("T", " ")]
                    for row, stage in rows
                ],
            )
            if rows
            else "nothing was asked yet"
        )
        awaited = sorted({row.silo for row, _ in rows if _awaited(row)} - coordinator.registry.revoked())
        print(f"awaited: {', '.join(awaited)}" if awaited else "nobody is awaited")


def _run_folders(options: argparse.Namespace) -> list[Path]:
    """The run that was named, or all in the coordinator's folder."""
    if options.folder is None:
        return sorted(index.parent.parent for index in (options.coordinator / "runs").glob(f"*/{_INDEX}"))
    if not (options.folder / _INDEX).exists():
        raise ConfigError(f"{options.folder}: this is not a run's folder (there is no store in it)")
    return [options.folder]


def _asked(folder: Path) -> list[tuple[Asked, int]]:
    """What was asked in a run, and in which stage of its method."""
    from dpdd.common.wire.request import decode_request
    from dpdd.server.run.store import Store

    store = Store(folder / "store")
    try:
        rows = store.asked()
        stages = {name: decode_request(store.request(name) or b"").stage for name in {row.request_id for row in rows}}
    finally:
        store.close()
    return [(row, stages[row.request_id]) for row in rows]


def _awaited(row: Asked) -> bool:
    from dpdd.server.transport.request_queue import settled

    return not settled(row)


def _words(row: Asked) -> str:
    from dpdd.common.wire.answer import Refusal, decode_answer

    answer = decode_answer(row.refusal) if row.state == "refused" and row.refusal is not None else None
    return f"refused ({answer.reason.words}): {answer.message}" if isinstance(answer, Refusal) else row.state


def _export(options: argparse.Namespace) -> None:
    import shutil

    if options.out.exists():
        raise ConfigError(f"{options.out}: there is something of that name already")
    card = _checked_card(options.folder)
    partial = options.out.with_name(f".{options.out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "store").mkdir(parents=True)
    shutil.copytree(options.folder / "dataset", partial / "dataset")
    for name in ("card.json", "CARD.md"):
        shutil.copy(options.folder / name, partial / name)
    digests = [digest for row in card["silos"] for digest in row["release_sha256"]]
    for digest in digests:
        shutil.copy(options.folder / "store" / digest, partial / "store" / digest)
    partial.rename(options.out)
    print(f"wrote {options.out}: the dataset, its card and {len(digests)} signed releases")
    print(f"anybody can check it: `dpdd-server verify {options.out}`")


def _verify(options: argparse.Namespace) -> None:
    from dpdd.server.report.card import budget_cells

    card = _checked_card(options.folder)
    rows = [[*budget_cells(row), f"{len(row['release_sha256'])}, signed"] for row in card["silos"]]
    print(table(["silo", "ε", "δ", "releases"], rows))
    releases = sum(len(row["release_sha256"]) for row in card["silos"])
    teacher = f", its teacher ({card['teacher_sha256'][:16]}…)" if card.get("teacher_sha256") else ""
    print(f"the dataset ({card['dataset_sha256'][:16]}…){teacher} and {releases} releases are as the card says")


def _checked_card(folder: Path) -> dict[str, Any]:
    """The data card of a finished run, after everything in it was checked."""
    from dpdd.common.privacy import events
    from dpdd.common.synthesis.product_files import DATASET, MODEL, TEACHER, file_sha256
    from dpdd.common.wire.release import open_signed
    from dpdd.server.run.store import read_stored

    path = folder / "card.json"
    try:
        card: dict[str, Any] = json.loads(path.read_text())
        silos, expected = card["silos"], card["dataset_sha256"]
        keys = {row["silo"]: bytes.fromhex(row["public_key"]) for row in silos}
    except FileNotFoundError:
        raise DataError(f"{path}: there is no data card; is this a finished run?") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: this is not a data card") from None
    dataset = folder / "dataset" / (MODEL if card.get("file") == MODEL else DATASET)
    if not dataset.exists():
        raise DataError(f"{dataset}: the dataset is missing")
    if file_sha256(dataset) != expected:
        raise IntegrityError(f"{dataset}: the dataset is not the one in the card")
    _check_teacher(folder / "dataset" / TEACHER, card.get("teacher_sha256"))
    store = folder / "store"
    for row in silos:
        releases = [open_signed(read_stored(store, digest), keys[row["silo"]]) for digest in row["release_sha256"]]
        if not releases or len({release.request_id for release in releases}) != len(releases):
            raise IntegrityError(f"the card's row for {row['silo']} names no release, or one twice")
        stated = row["epsilon"] if row["epsilon"] is not None else float("inf")
        for release in releases:
            if release.silo != row["silo"]:
                raise IntegrityError(f"the release in the card's row for {row['silo']} is by silo {release.silo}")
            if (release.guarantee.epsilon, release.guarantee.delta) != (stated, row["delta"]):
                raise IntegrityError(f"the card states another guarantee for {row['silo']} than the silo signed")
        if events.to_json(events.compose(*(release.event for release in releases))) != row["event"]:
            raise IntegrityError(f"the card states another event for {row['silo']} than the silo signed")
    return card


def _check_teacher(path: Path, expected: str | None) -> None:
    """IntegrityError for another teacher than the card's, or for one that the card does not speak of."""
    from dpdd.common.synthesis.product_files import file_sha256

    if not path.exists():
        if expected is not None:
            raise DataError(f"{path}: the teacher that the card names is missing")
    elif expected is None:
        raise IntegrityError(f"{path}: the card names no teacher; remove this one")
    elif file_sha256(path) != expected:
        raise IntegrityError(f"{path}: the teacher is not the one in the card")


if __name__ == "__main__":
    sys.exit(main())
