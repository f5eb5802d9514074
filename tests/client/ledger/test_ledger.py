"""The ledger keeps the budget, shows tampering, and says clearly what is wrong."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.ledger.checkpoint import Checkpoint
from dpdd.client.ledger.hash_chain import verify
from dpdd.client.ledger.ledger import Ledger, OverBudget
from dpdd.common.errors import LedgerError
from dpdd.common.privacy.accounting import Guarantee, calibrate, gaussian_releases
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from dpdd.common.privacy.filters import Budget, Spending

BUDGET = Budget(1.0, 1e-5)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
QUARTER = Gaussian(calibrate(gaussian_releases(4), 1.0, 1e-5))


def request_id(number: int) -> str:
    return f"{number:064x}"


def reserve(ledger: Ledger, number: int, event: object = QUARTER) -> object:
    return ledger.reserve(
        request_id(number), "dp-merf", Spending(event, 0.0), Guarantee(0.5, 1e-5, "test"), {"run": "r", "stage": 0}
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Ledger.create(tmp_path / "ledger.sqlite", "north", BUDGET, KEY)
    return tmp_path / "ledger.sqlite"


def open_ledger(path: Path, **options: object) -> Ledger:
    return Ledger(path, "north", BUDGET, KEY, **options)


def test_releases_fit_until_the_budget_is_used_up_and_the_error_gives_the_figures(path: Path) -> None:
    ledger = open_ledger(path)
    for number in range(4):
        reserve(ledger, number)
    with pytest.raises(OverBudget) as caught:
        reserve(ledger, 4)
    decision = caught.value.verdict
    assert decision.requested > decision.remaining >= 0.0
    assert decision.difference == decision.requested - decision.remaining
    for word in ("requested", "remaining", "difference"):
        assert word in str(caught.value)
    assert ledger.status().reserved == 4
    assert 0.999 < ledger.status().spent <= 1.0


def test_reserving_and_committing_again_change_nothing(path: Path) -> None:
    ledger = open_ledger(path)
    first = reserve(ledger, 1)
    assert reserve(ledger, 1) == first
    done = ledger.commit(request_id(1), "ab" * 32)
    assert ledger.commit(request_id(1), "ab" * 32) == done
    with pytest.raises(LedgerError, match="another release"):
        ledger.commit(request_id(1), "cd" * 32)
    with pytest.raises(LedgerError, match="never reserved"):
        ledger.commit(request_id(2), "cd" * 32)
    assert [entry.kind for entry in ledger.entries()] == ["open", "reserve", "commit"]


def test_a_gaussian_ledger_refuses_sampled_events_and_a_renyi_one_takes_both(tmp_path: Path, path: Path) -> None:
    ledger = open_ledger(path)
    reserve(ledger, 1)
    with pytest.raises(OverBudget, match="plain Gaussian"):
        reserve(ledger, 2, PoissonGaussian(8.0, 0.01, 100))
    mixed = Budget(1.0, 1e-5, "renyi")
    Ledger.create(tmp_path / "mixed.sqlite", "north", mixed, KEY)
    ledger = Ledger(tmp_path / "mixed.sqlite", "north", mixed, KEY)
    reserve(ledger, 1, Gaussian(12.0))
    reserve(ledger, 2, PoissonGaussian(8.0, 0.01, 100))
    assert ledger.status().spent < 1.0


def test_nothing_unprotected_fits(path: Path) -> None:
    with pytest.raises(OverBudget, match="no protection"):
        reserve(open_ledger(path), 1, NonPrivate())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET body = replace(body, '0.5', '0.1') WHERE seq = 2",
        "UPDATE entries SET body = '{' WHERE seq = 2",
        "UPDATE entries SET time = '2001-01-01T00:00:00+00:00' WHERE seq = 2",
        "DELETE FROM entries WHERE seq = 2",
        "DELETE FROM entries WHERE seq = 1",
        "UPDATE entries SET signature = zeroblob(64) WHERE seq = 3",
        "DELETE FROM entries",
    ],
)
def test_tampering_shows_at_the_next_opening(path: Path, damage: str) -> None:
    ledger = open_ledger(path)
    reserve(ledger, 1)
    reserve(ledger, 2)
    ledger.close()
    with sqlite3.connect(path) as db:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(damage)
        db.execute("DROP TRIGGER append_only")
        db.execute("DROP TRIGGER keep_all")
        db.execute(damage)
    with pytest.raises(LedgerError, match="tampered"):
        open_ledger(path)


def test_every_entry_names_the_one_before(path: Path) -> None:
    """Signed entries of a copy that went on otherwise cannot stand in for this ledger's own."""
    copy = path.with_name("copy.sqlite")
    copy.write_bytes(path.read_bytes())
    histories = []
    for one, numbers in ((path, (1, 2, 3)), (copy, (4, 5, 6))):
        ledger = open_ledger(one)
        for number in numbers[:3]:
            reserve(ledger, number)
        histories.append(ledger.entries())
        ledger.close()
    ours, others = histories
    for mixed in ([*ours[:2], others[2], ours[3]], [*ours[:3], others[3]], [*others[:2], *ours[2:]]):
        assert [entry.seq for entry in mixed] == [1, 2, 3, 4]
        with pytest.raises(LedgerError, match="does not match its hash"):
            verify(mixed, KEY.public_key())
    verify(ours, KEY.public_key())


def test_an_entry_is_on_disk_before_anything_is_released(path: Path) -> None:
    """SQLite waits for the disk, and for the folder of a journal that is gone: a power cut takes nothing back."""
    db = open_ledger(path)._db
    assert db.execute("PRAGMA synchronous").fetchone() == (3,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_ledger_rewritten_with_another_key_shows(path: Path) -> None:
    other = Ed25519PrivateKey.generate()
    path.unlink()
    Ledger.create(path, "north", BUDGET, other)
    with pytest.raises(LedgerError, match="not signed by this silo"):
        open_ledger(path)


def test_another_silos_ledger_is_refused(path: Path) -> None:
    with pytest.raises(LedgerError, match="belongs to silo 'north'"):
        Ledger(path, "south", BUDGET, KEY)


def test_a_ledger_is_never_started_over(path: Path) -> None:
    with pytest.raises(LedgerError, match="never started over"):
        Ledger.create(path, "north", BUDGET, KEY)


def test_a_clock_that_went_back_stops_releases_until_the_operator_accepts_it(path: Path) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    reserve(open_ledger(path, clock=lambda: tomorrow), 1)
    today = open_ledger(path)
    with pytest.raises(LedgerError, match="clock"):
        reserve(today, 2)
    assert today.status().reserved == 1
    today.note("clock")
    reserve(today, 2)


def test_a_changed_budget_must_be_accepted(path: Path) -> None:
    larger = Ledger(path, "north", Budget(2.0, 1e-5), KEY)
    with pytest.raises(LedgerError, match="--accept-change"):
        larger.check_budget()
    larger.accept_budget(Budget(2.0, 1e-5))
    larger.check_budget()
    with pytest.raises(LedgerError, match="--accept-change"):
        open_ledger(path).check_budget()


def test_a_new_budget_cannot_change_the_filter_after_a_release(path: Path) -> None:
    ledger = Ledger(path, "north", Budget(1.0, 1e-5, "renyi"), KEY)
    ledger.accept_budget(Budget(1.0, 1e-5, "renyi"))  # nothing released yet: the choice is free
    reserve(ledger, 1, Gaussian(12.0))
    with pytest.raises(LedgerError, match="settled how this ledger composes"):
        ledger.accept_budget(Budget(1.0, 1e-5, "gaussian"))
    ledger.accept_budget(Budget(1.5, 1e-5, "renyi"))
    assert ledger.recorded_budget() == Budget(1.5, 1e-5, "renyi")


def test_a_second_process_waits_or_is_refused(path: Path) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="another process"):
        reserve(open_ledger(path, timeout=0.05), 1)
    holder.execute("ROLLBACK")
    reserve(open_ledger(path, timeout=0.05), 1)


class SlowLedger(Ledger):
    """Reads slowly, so that whoever reads before taking the write lock is sure to be overtaken."""

    def _current(self) -> Checkpoint:
        now = super()._current()
        time.sleep(0.02)
        return now


def _reserve_many(path: Path, start: int, results: multiprocessing.Queue) -> None:
    ledger = SlowLedger(path, "north", BUDGET, KEY)
    taken = 0
    for number in range(start, start + 10):
        try:
            reserve(ledger, number)
            taken += 1
        except OverBudget:
            pass
    results.put(taken)


def test_four_processes_together_never_pass_the_budget(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_reserve_many, args=(path, 100 * n, results)) for n in range(4)]
    for worker in workers:
        worker.start()
    taken = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(taken) == 4
    assert open_ledger(path).status().spent <= 1.0


@pytest.mark.parametrize("content", [b"", b"not a database at all", b"SQLite format 3\0" + bytes(50)])
def test_a_damaged_file_gives_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(LedgerError) as caught:
        open_ledger(path)
    assert "\n" not in str(caught.value)
