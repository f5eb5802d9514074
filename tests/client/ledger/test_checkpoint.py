"""The checkpoint: a decision costs the same in a long ledger, says the same as from scratch, and cannot be forged."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.ledger import checkpoint as checkpoints
from dpdd.client.ledger import hash_chain, lookup
from dpdd.client.ledger.checkpoint import summed
from dpdd.client.ledger.hash_chain import Entry
from dpdd.client.ledger.ledger import Ledger, OverBudget
from dpdd.client.ledger.ledger_file import Draft
from dpdd.client.ledger.position import Position
from dpdd.common.errors import LedgerError
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.privacy.events import Event, Gaussian, PoissonGaussian
from dpdd.common.privacy.filters import Budget, Spending, verdict
from tests.client.ledger.bench_ledger import filled, opened, request_id
from tests.client.ledger.bench_ledger import reserve as reserve_more
from tests.common.privacy.from_scratch import admits

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
BUDGET = Budget(1.0, 1e-5)


def reserve(ledger: Ledger, number: int, event: Event, distance: float = 0.0, **more: object) -> Entry:
    details = {"run": "r", **more}
    return ledger.reserve(
        request_id(number), "dp-merf", Spending(event, distance), Guarantee(0.5, 1e-5, "test"), details, stages=2
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Ledger.create(tmp_path / "ledger.sqlite", "north", BUDGET, KEY)
    return tmp_path / "ledger.sqlite"


def open_ledger(path: Path, budget: Budget = BUDGET, **options: object) -> Ledger:
    return Ledger(path, "north", budget, KEY, **options)  # type: ignore[arg-type]


def edit(path: Path, *statements: str, **values: bytes | str) -> None:
    """Change the file as somebody would who does not have the key."""
    with sqlite3.connect(path, isolation_level=None) as db:
        for statement in statements:
            db.execute(statement, values if ":" in statement else {})
    db.close()


# What it costs


class Work:
    """SQLite's steps and the signatures that were verified in the meantime."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = self.verified = 0
        original = hash_chain.verify_entry

        def counted(entry: Entry, key: object) -> None:
            self.verified += 1
            original(entry, key)  # type: ignore[arg-type]

        for module in (hash_chain, lookup):
            monkeypatch.setattr(module, "verify_entry", counted)

    def step(self) -> int:
        self.steps += 1
        return 0

    def of(self, path: Path, composition: str, operate: Callable[[Ledger], object]) -> tuple[int, int]:
        connect = sqlite3.connect

        def watched(*arguments: object, **options: object) -> sqlite3.Connection:
            db = connect(*arguments, **options)  # type: ignore[call-overload]
            db.set_progress_handler(self.step, 1)
            return db  # type: ignore[no-any-return]

        self.steps = self.verified = 0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sqlite3, "connect", watched)
            ledger = opened(path, composition, KEY)
            operate(ledger)
            ledger.close()
        return self.steps, self.verified


@pytest.mark.parametrize("composition", ["gaussian", "renyi"])
def test_a_long_ledger_costs_no_more_work_than_a_short_one(
    tmp_path: Path, composition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: SQLite's steps and verified signatures, each with the opening that a silo does."""
    paths = {size: tmp_path / f"{size}.sqlite" for size in (10, 600)}
    for size, path in paths.items():
        filled(path, size, composition, KEY).close()
    work, known, spending = Work(monkeypatch), request_id(10**6), Spending(Gaussian(1e5), 0.0)
    operations: dict[str, Callable[[Ledger], object]] = {
        "reserve": lambda ledger: reserve_more(ledger, 1, composition),
        "commit": lambda ledger: ledger.commit(request_id(1), request_id(1)),
        "status": lambda ledger: ledger.status(),
        "judge": lambda ledger: ledger.judge(request_id(2), spending),
        "check budget": lambda ledger: ledger.check_budget(),
        "check holdout": lambda ledger: ledger.check_holdout({}),
        "committed": lambda ledger: ledger.committed(known),
        "reservation": lambda ledger: ledger.reservation(known),
        "decision": lambda ledger: ledger.decision(known),
        "unpaid": lambda ledger: ledger.unpaid([known, request_id(3)]),
        "paid since": lambda ledger: ledger.paid_since(datetime.now(UTC) - timedelta(days=1), 3),
        "anchor": lambda ledger: (ledger.check_anchor(), ledger.follow_anchor()),
        "note": lambda ledger: ledger.note("approve", request_id(4)),
        "holds": lambda ledger: ledger.holds(Position(3, "ab" * 32)),
    }
    for name, operate in operations.items():
        (few, first), (many, second) = (work.of(path, composition, operate) for path in paths.values())
        assert first == second < 15, name
        assert many < 1.2 * few, name


def test_no_statement_goes_through_all_entries(path: Path) -> None:
    ledger, statements = open_ledger(path), list[str]()
    reserve(ledger, 1, Gaussian(50.0))
    ledger._db.set_trace_callback(statements.append)
    spending = Spending(Gaussian(50.0), 0.0)
    ledger.check_stage(request_id(9), request_id(1), 1, spending)
    ledger.judge(request_id(2), spending)
    ledger.commit(request_id(1), "ab" * 32)
    ledger.note("deny", request_id(3), {"why": "x"})
    ledger.decision(request_id(3))
    ledger.unpaid([request_id(5)])
    ledger.paid_since(datetime.now(UTC), 1)
    ledger.holds(Position(2, "ab" * 32))
    ledger.status()
    ledger._db.set_trace_callback(None)
    queries = [each for each in statements if each.startswith("SELECT") and "FROM entries" in each]
    assert len(queries) > 12
    for query in queries:
        plan = [row[3] for row in ledger._db.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()]
        scans = [step for step in plan if step.startswith("SCAN") and "ORDER BY seq DESC LIMIT 1" not in query]
        assert all("subquery" in step for step in scans), (query, plan)


# What it says


@pytest.mark.parametrize("composition", ["gaussian", "renyi"])
def test_decisions_over_random_histories_agree_with_the_filter_from_scratch(tmp_path: Path, composition: str) -> None:
    """And the checkpoint is what all entries come to, after each of them."""
    chance = random.Random(composition)
    for history in range(4):
        path, budget = tmp_path / f"{history}.sqlite", Budget(chance.choice([0.5, 2.0]), 1e-5, composition)  # type: ignore[arg-type]
        Ledger.create(path, "north", budget, KEY)
        ledger, kept = open_ledger(path, budget), list[Spending]()
        for number in range(25):
            event: Event = Gaussian(chance.choice([6.0, 11.0, chance.uniform(4, 60)]), chance.randint(1, 3))
            if composition == "renyi" and chance.random() < 0.5:
                event = PoissonGaussian(chance.choice([3.0, 6.0]), 0.01, 30)
            new = Spending(event, chance.choice([0.0, 1e-12, 1e-8]))
            fits = admits(budget, kept, new)
            if not fits and admits(Budget(budget.epsilon, budget.delta * (1 + 1e-9), budget.composition), kept, new):
                continue  # to the last bit: either answer is right
            try:
                reserve(ledger, number, new.event, new.distance)
                assert fits
                kept.append(new)
            except OverBudget:
                assert not fits
            if chance.random() < 0.3:
                ledger.close()
                ledger = open_ledger(path, budget)
            assert ledger._now() == summed(ledger.entries())
        assert kept and ledger.status().reserved == len(kept)
        ledger.close()


def test_what_a_checkpoint_counts(path: Path) -> None:
    ledger = open_ledger(path)
    reserve(ledger, 1, Gaussian(30.0))
    reserve(ledger, 2, Gaussian(40.0), 1e-12, holdout="0.2 abcd")
    ledger.begin_stage(request_id(3), request_id(1), 1, Spending(Gaussian(30.0), 0.0))
    ledger.commit(request_id(1), "ab" * 32)
    ledger.note("approve", request_id(5))
    now = ledger._now()
    assert (now.head.sequence, now.head.reservations, now.committed) == (6, 2, 1)
    assert now.holdouts == (None, "0.2 abcd") and now.spent.count == 2 and now.silo == "north"
    assert ledger.status().head == now.head.entry == ledger.entries()[-1].hash
    with pytest.raises(LedgerError, match=r"holdout of 0\.2"):
        ledger.check_holdout({})
    ledger.accept_budget(Budget(3.0, 1e-6))
    assert ledger._now().budget == Budget(3.0, 1e-6) == ledger.recorded_budget()
    assert ledger._now() == summed(ledger.entries())


def test_a_budget_of_the_future_is_judged_from_scratch(path: Path) -> None:
    reserve(open_ledger(path), 1, Gaussian(10.0))
    larger = open_ledger(path, Budget(4.0, 1e-5))
    spending = Spending(Gaussian(2.0), 0.0)
    judged = larger.judge(request_id(2), spending)
    assert judged == verdict(Budget(4.0, 1e-5), [Spending(Gaussian(10.0), 0.0)], spending)


# Old ledgers, and forged checkpoints


def without_checkpoint(path: Path) -> None:
    """As earlier versions made it."""
    indexes = ("recovered_once", "decisions", "paid_when", "rebuilt")
    edit(path, "DROP TABLE checkpoint", *(f"DROP INDEX {name}" for name in indexes))


def test_a_ledger_of_an_earlier_version_gets_a_checkpoint_after_one_whole_verification(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(path)
    for number in range(5):
        reserve(ledger, number, Gaussian(50.0))
    before, entries = ledger.status(), ledger.entries()
    ledger.close()
    without_checkpoint(path)
    old = path.read_bytes()
    path.chmod(0o400)
    work = Work(monkeypatch)
    first = open_ledger(path)
    assert first.status() == before and first.entries() == entries and work.verified >= 6
    first.close()
    path.chmod(0o600)
    open_ledger(path).close()
    work.verified = 0
    again = open_ledger(path)
    assert again.status() == before and work.verified < 6
    assert again._now() == summed(entries)
    again.close()
    path.write_bytes(old.replace(b'"distance":0.0', b'"distance":0.1', 1))
    with pytest.raises(LedgerError, match="tampered"):
        open_ledger(path)


def test_a_ledger_that_earlier_software_went_on_with_is_read_from_its_entries(path: Path) -> None:
    ledger = open_ledger(path)
    reserve(ledger, 1, Gaussian(10.0))
    with sqlite3.connect(path) as db:
        row = db.execute("SELECT body, signature FROM checkpoint").fetchone()
    db.close()
    reserve(ledger, 2, Gaussian(10.0))
    newest = ledger.status()
    ledger.close()
    edit(path, "UPDATE checkpoint SET body = :body, signature = :signature", body=row[0], signature=row[1])
    behind = open_ledger(path)
    assert behind.status() == newest
    reserve(behind, 3, Gaussian(20.0))
    assert behind._now().spent.count == 3


@pytest.mark.parametrize("field", ["count", "earlier", "releases"])
def test_a_checkpoint_with_other_figures_is_found(path: Path, field: str) -> None:
    ledger = open_ledger(path)
    reserve(ledger, 1, Gaussian(5.0))
    ledger.close()
    with sqlite3.connect(path) as db:
        body = json.loads(db.execute("SELECT body FROM checkpoint").fetchone()[0])
    db.close()
    body["spent"][field] = 0
    edit(path, "UPDATE checkpoint SET body = :body", body=json.dumps(body))
    with pytest.raises(LedgerError, match="checkpoint is not signed"):
        open_ledger(path)


def test_a_checkpoint_by_another_key_is_found(path: Path) -> None:
    entries = open_ledger(path).entries()
    with sqlite3.connect(path) as db:
        checkpoints.store(db, summed(entries), Ed25519PrivateKey.generate())
        db.commit()
    db.close()
    with pytest.raises(LedgerError, match="checkpoint is not signed"):
        open_ledger(path)


def test_a_checkpoint_that_was_removed_is_made_again_from_the_entries(path: Path) -> None:
    ledger = open_ledger(path)
    reserve(ledger, 1, Gaussian(5.0))
    newest = ledger.status()
    ledger.close()
    edit(path, "DELETE FROM checkpoint")
    assert open_ledger(path).status() == newest


@pytest.mark.parametrize("again", [True, False])
def test_a_ledger_that_was_cut_short_does_not_fit_its_checkpoint(path: Path, again: bool) -> None:
    """With the triggers put back or not; and with the schema's cookie, too."""
    ledger = open_ledger(path)
    for number in range(3):
        reserve(ledger, number, Gaussian(50.0))
    ledger.close()
    with sqlite3.connect(path, isolation_level=None) as db:
        cookie = db.execute("PRAGMA schema_version").fetchone()[0]
        triggers = [row[0] for row in db.execute("SELECT sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()]
        db.execute("DROP TRIGGER keep_all")
        db.execute("DROP TRIGGER append_only")
        db.execute("DELETE FROM entries WHERE seq > 2")
        if again:
            for trigger in triggers:
                db.execute(trigger)
            db.execute(f"PRAGMA schema_version = {cookie}")
    db.close()
    if again:
        with pytest.raises(LedgerError, match="entry 4 is missing"):
            open_ledger(path)
    else:  # whoever goes by the entries sees a shorter ledger: that it was longer is known outside
        assert open_ledger(path).status().reserved == 1


def test_an_old_entry_that_was_removed_is_found_before_noise_is_drawn_again(path: Path) -> None:
    """By somebody who put everything else back as it was: no opening can see that, but whatever needs it does."""
    ledger = open_ledger(path)
    reserve(ledger, 1, Gaussian(50.0))
    ledger.commit(request_id(1), "ab" * 32)
    reserve(ledger, 2, Gaussian(60.0))
    ledger.close()
    with sqlite3.connect(path, isolation_level=None) as db:
        cookie = db.execute("PRAGMA schema_version").fetchone()[0]
        trigger = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'keep_all'").fetchone()[0]
        db.execute("DROP TRIGGER keep_all")
        db.execute("DELETE FROM entries WHERE kind = 'commit'")
        db.execute(trigger)
        db.execute(f"PRAGMA schema_version = {cookie}")
    db.close()
    opened_again = open_ledger(path)
    assert opened_again.status().reserved == 2  # what was spent is in the checkpoint
    with pytest.raises(LedgerError, match="entry 3 is missing"):
        reserve(opened_again, 1, Gaussian(50.0))
    with pytest.raises(LedgerError, match="entry 3 is missing"):
        opened_again.begin_stage(request_id(7), request_id(1), 1, Spending(Gaussian(50.0), 0.0))
    with pytest.raises(LedgerError, match="entry 3 is missing"):
        opened_again.verify()


def test_an_entry_that_is_looked_up_is_verified(path: Path) -> None:
    ledger = open_ledger(path)
    reserve(ledger, 1, Gaussian(50.0))
    reserve(ledger, 2, Gaussian(60.0))
    ledger.close()
    data = path.read_bytes()
    assert data.count(b'"sigma":50.0') == 2  # the checkpoint knows the first event, too
    at = data.index(b'"sigma":50.0', data.index(b'"sigma":50.0') + 1)
    for place in (at, data.index(b'"sigma":50.0')):
        path.write_bytes(data[:place] + b'"sigma":90.0' + data[place + 12 :])
        with pytest.raises(LedgerError, match="tampered"):
            open_ledger(path).reservation(request_id(1))


def test_no_noise_is_drawn_for_what_was_paid_before_a_recovery(path: Path) -> None:
    ledger = open_ledger(path)
    reserve(ledger, 1, Gaussian(50.0))
    reserve(ledger, 2, Gaussian(60.0))
    ledger.commit(request_id(2), "ab" * 32)
    ledger.rebuild([Draft("resume", "", {"entry": "", "position": 0}, 20)])
    assert ledger.entries()[-1].seq == 21
    for request in (1, 2):
        with pytest.raises(LedgerError, match="before this ledger was rebuilt"):
            ledger.begin_stage(
                request_id(7), request_id(request), 1, Spending(Gaussian(50.0 + 10 * (request - 1)), 0.0)
            )
    with pytest.raises(LedgerError, match="before this ledger was rebuilt"):
        reserve(ledger, 1, Gaussian(50.0))
    assert reserve(ledger, 2, Gaussian(60.0)).kind == "reserve"  # its release is here: the same bytes, at no cost
    reserve(ledger, 3, Gaussian(70.0))


def test_nothing_fits_a_budget_that_was_written_off_not_even_a_larger_one(path: Path) -> None:
    ledger = open_ledger(path)
    reserve(ledger, 1, Gaussian(50.0))
    stands_for = {"release_sha256": "ab" * 32, "entry": "cd" * 32, "position": 9, "from": "outbox"}
    ledger.rebuild(
        [Draft("commit", request_id(1), stands_for), Draft("written-off", "", {"why": "lost", "missing": 1})]
    )
    assert ledger.holds(Position(9, "cd" * 32)) and not ledger.holds(Position(9, "ce" * 32))
    with pytest.raises(OverBudget, match="written off"):
        reserve(ledger, 2, Gaussian(1e6))
    assert ledger.status().remaining == 0.0 and ledger.status().spent == 1.0
    ledger.accept_budget(Budget(5.0, 1e-5))
    with pytest.raises(OverBudget, match="written off"):
        reserve(ledger, 2, Gaussian(1e6))
    assert ledger._now() == summed(ledger.verify())
