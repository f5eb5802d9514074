"""`dpdd-server`: the coordinator's command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dpdd.common.cli import Commands, table
from dpdd.common.errors import DataError, IntegrityError


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    commands = Commands("dpdd-server", "Coordinate silos, and build a dataset from their releases.")
    verify = commands.add(
        "verify",
        _verify,
        "check a finished run: the dataset's hash, every release's signature and guarantee",
    )
    verify.add_argument("folder", type=Path, help="the run's folder (with card.json)")
    return commands.main(arguments)


def _verify(options: argparse.Namespace) -> None:
    from dpdd.common.synthesis.dataset import FILE, file_sha256
    from dpdd.common.wire.release import open_signed
    from dpdd.server.store import Store

    path = options.folder / "card.json"
    try:
        card = json.loads(path.read_text())
        silos, expected = card["silos"], card["dataset_sha256"]
        keys = {row["silo"]: bytes.fromhex(row["public_key"]) for row in silos}
    except FileNotFoundError:
        raise DataError(f"{path}: there is no data card; is this a finished run?") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: this is not a data card") from None
    dataset = options.folder / "dataset" / FILE
    if not dataset.exists():
        raise DataError(f"{dataset}: the dataset is missing")
    if file_sha256(dataset) != expected:
        raise IntegrityError(f"{dataset}: the dataset is not the one in the card")
    store = Store(options.folder / "store")
    rows = []
    for row in silos:
        release = open_signed(store.read(row["release_sha256"]), keys[row["silo"]])
        if release.silo != row["silo"]:
            raise IntegrityError(f"the release in the card's row for {row['silo']} is by silo {release.silo}")
        stated = row["epsilon"] if row["epsilon"] is not None else float("inf")
        if (release.guarantee.epsilon, release.guarantee.delta) != (stated, row["delta"]):
            raise IntegrityError(f"the card states another guarantee for {row['silo']} than the silo signed")
        rows.append([release.silo, f"{release.guarantee.epsilon:g}", f"{release.guarantee.delta:g}", "signed"])
    print(table(["silo", "ε", "δ", "release"], rows))
    print(f"the dataset ({expected[:16]}…) and {len(rows)} releases are as the card says")


if __name__ == "__main__":
    sys.exit(main())
