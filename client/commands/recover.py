"""`recover`: a ledger that was lost, or replaced by an old copy, is rebuilt from releases."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpdd.client.commands.options import open_silo
from dpdd.common.cli import print_json, table
from dpdd.common.errors import ConfigError, DpddError, LedgerError

if TYPE_CHECKING:
    from dpdd.client.recover import Recovered, Source
    from dpdd.client.silo import Silo


def recover(options: argparse.Namespace) -> None:
    """Rebuild what the outbox and the coordinator know and the ledger does not."""
    from dpdd.client import recover as recovery

    silo = open_silo(options)
    with _source(options, silo) as source:
        done = recovery.recover(silo, source, write_off=options.write_off, dry_run=options.dry_run)
    if options.json:
        print_json(
            {
                "dry_run": options.dry_run,
                "releases": [
                    {"request": each.release.request_id, "run": each.payment.run, "found": each.where}
                    for each in done.releases
                ],
                "restored_to_outbox": list(done.restored),
                "entries": done.entries,
                "missing": done.missing,
                "written_off": done.written_off,
            }
        )
    else:
        _show(done, source is not None, dry_run=options.dry_run)
    if done.missing != 0 and not done.written_off:
        raise LedgerError(_open(done))


@contextmanager
def _source(options: argparse.Namespace, silo: Silo) -> Iterator[Source | None]:
    """The coordinator, where one was joined and is wanted."""
    pinned = silo.settings.coordinator
    if options.from_coordinator and pinned is None:
        raise ConfigError("silo.toml pins no coordinator, so none can be asked; leave --from-coordinator out")
    if pinned is None or options.offline:
        yield None
        return
    import grpc

    from dpdd.client.transport.channel import explain, open_channel
    from dpdd.client.transport.stored_releases import StoredReleases

    with open_channel(silo.folder, pinned, options.address or pinned.address) as channel:
        try:
            yield StoredReleases(channel)
        except grpc.RpcError as error:
            raise DpddError(
                f"the coordinator cannot be asked for this silo's releases: {explain(error)}; nothing was changed. "
                "It may have more than the outbox: --offline goes by the outbox alone"
            ) from None


def _show(done: Recovered, asked: bool, *, dry_run: bool) -> None:
    if done.releases:
        rows = [
            [
                each.payment.run,
                each.release.method,
                str(each.payment.stage),
                f"{each.release.guarantee.epsilon:g}",
                each.where,
                each.release.request_id[:12],
            ]
            for each in done.releases
        ]
        print(table(["run", "method", "stage", "ε", "found in", "request"], rows))
    where = "the outbox and the coordinator know" if asked else "the outbox knows"
    would = "would be " if dry_run else ""
    if done.restored:
        print(f"{would}put back into the outbox: {_count(len(done.restored), 'release', 'releases')}")
    if not done.entries:
        print(f"nothing is missing in the ledger that {where} of" if done.missing == 0 else "nothing was found")
        return
    where = "made in a new ledger" if done.lost else "appended to the ledger"
    print(f"{would}{where}: {_count(done.entries, 'entry', 'entries')}")
    if done.written_off:
        print("the rest of the budget is written off: nothing more can be spent")
    elif done.missing == 0:
        print("the ledger is whole, as far as its anchor and its releases count")


def _count(number: int, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{number} {many}"


def _open(done: Recovered) -> str:
    missing = "it cannot be told how many reservations are"
    if done.missing is not None:
        missing = _count(done.missing, "reservation is", "reservations are")
    return (
        f"{missing} still missing, which nothing here can rebuild; find a newer ledger in a backup, or the missing "
        "releases (put them into state/outbox, and recover again), or close the budget for good with "
        "`dpdd-client recover --write-off`; nothing is answered before"
    )
