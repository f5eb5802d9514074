"""Attempts to get a budget back that was spent: by deleting the ledger, or by restoring an old copy of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dpdd.client import continuity, rehearsal
from dpdd.client.cli import main
from dpdd.client.ledger.ledger import Ledger
from dpdd.client.outbox import Outbox
from dpdd.client.silo import Silo
from dpdd.common.errors import IntegrityError, LedgerError
from dpdd.common.wire.answer import SignedReleaseBytes
from tests.client.silos import make_request, make_silo


def answered(silo: Silo, run: str, epsilon: float = 0.5) -> bytes:
    answer = silo.answer(make_request(run, epsilon).encode())
    assert isinstance(answer, SignedReleaseBytes)
    return answer.data


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1, err
    return code, err


def test_a_deleted_ledger_and_init_give_no_fresh_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silo = make_silo(tmp_path / "north")
    answered(silo, "one", 1.0)
    ledger = tmp_path / "north" / "state" / "ledger.sqlite"
    ledger.unlink()
    for command in (("init", silo.folder), ("budget", "--silo", silo.folder)):
        code, err = failure(capsys, *command)
        assert code == 8 and "backup" in err and "dpdd-client init" not in err
    with pytest.raises(LedgerError, match="backup"):
        silo.answer(make_request("two", 1.0).encode())
    assert not ledger.exists()


@pytest.mark.parametrize("left", ["key.pem", "holdout.key", "outbox", "requests", "coordinator"])
def test_any_trace_of_a_silo_keeps_init_from_making_another_ledger(tmp_path: Path, left: str) -> None:
    silo = make_silo(tmp_path / "north", approval="ask" if left == "requests" else "auto")
    silo.answer(make_request().encode())
    state = silo.folder / "state"
    (state / "coordinator").mkdir()
    for path in state.iterdir():
        if path.name != left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(LedgerError, match="delete nothing"):
        Silo.initialise(silo.folder)
    assert not (state / "ledger.sqlite").exists()


def test_a_lost_key_is_not_replaced_beside_its_ledger(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    (silo.folder / "state" / "key.pem").unlink()
    with pytest.raises(IntegrityError, match="backup"):
        Silo.initialise(silo.folder)
    assert not (silo.folder / "state" / "key.pem").exists()


@pytest.mark.parametrize("crashes_at", range(4))
def test_an_interrupted_first_init_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes_at: int
) -> None:
    """Stopped before the ledger is made, in the middle of that, before its final name, before the key's."""
    home = tmp_path / "north"
    make_silo(home)
    shutil.rmtree(home / "state")
    rename, renamed = Path.rename, 0

    def no_ledger(path: Path, *_: object) -> None:
        if crashes_at == 1:
            path.write_bytes(b"half a ledger")
        raise KeyboardInterrupt

    def no_rename(source: Path, target: Path) -> Path:
        nonlocal renamed
        if renamed == crashes_at - 2:
            raise KeyboardInterrupt
        renamed += 1
        return rename(source, target)

    with monkeypatch.context() as patched:
        if crashes_at < 2:
            patched.setattr(Ledger, "create", no_ledger)
        else:
            patched.setattr(Path, "rename", no_rename)
        with pytest.raises(KeyboardInterrupt):
            Silo.initialise(home)
    assert not (home / "state" / "key.pem").exists()
    silo = Silo.initialise(home)
    answered(silo, "one")
    key = silo.public_key
    assert Silo.initialise(home).public_key == key
    assert not list((home / "state").glob("*.unfinished*"))


def test_an_old_ledger_that_was_restored_answers_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silo = make_silo(tmp_path / "north")
    first = answered(silo, "one", 0.3)
    ledger = silo.folder / "state" / "ledger.sqlite"
    old = ledger.read_bytes()
    answered(silo, "two", 0.3)
    answered(silo, "three", 0.3)
    newest = ledger.read_bytes()
    ledger.write_bytes(old)
    for run in ("four", "two"):
        with pytest.raises(LedgerError, match="at least 2 entries"):
            silo.answer(make_request(run, 0.3).encode())
        with pytest.raises(LedgerError, match="at least 2 entries"):
            rehearsal.rehearse(silo, make_request(run, 0.3).encode())
    assert failure(capsys, "preflight", "--silo", silo.folder)[0] == 8
    assert ledger.read_bytes() == old and len(silo.outbox.ids()) == 3
    assert answered(silo, "one", 0.3) == first  # a release that the ledger knows may leave again: it is the same one
    ledger.write_bytes(newest)
    answered(silo, "four", 0.3)


def test_a_release_that_was_paid_for_but_not_committed_is_no_sign_of_an_old_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    silo = make_silo(tmp_path / "north")
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", crash)
        with pytest.raises(KeyboardInterrupt):
            answered(silo, "crashed", 0.3)
    answered(silo, "another", 0.3)
    answered(silo, "crashed", 0.3)


def test_a_release_of_another_silo_in_the_outbox_is_named_as_such(tmp_path: Path) -> None:
    silo, other = make_silo(tmp_path / "north"), make_silo(tmp_path / "south")
    stranger = make_request("elsewhere", 0.5)
    silo.outbox.put(stranger.id, answered(other, "elsewhere"))
    with pytest.raises(IntegrityError, match="never paid for"):
        silo.answer(make_request("one", 0.5).encode())


def test_the_outbox_is_listed_again_only_when_somebody_else_changed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a note that it was compared is believed only when this silo signed it, for this outbox and this ledger."""
    silo, listed = make_silo(tmp_path / "north"), 0
    ids = Outbox.ids

    def counted(outbox: Outbox) -> list[str]:
        nonlocal listed
        listed += 1
        return ids(outbox)

    monkeypatch.setattr(Outbox, "ids", counted)
    answered(silo, "one", 0.2)
    assert listed == 1
    note = silo.folder / "state" / continuity.COMPARED
    old_note, old_ledger = note.read_bytes(), (silo.folder / "state" / "ledger.sqlite").read_bytes()
    answered(silo, "two", 0.2)
    answered(Silo(silo.folder), "three", 0.2)
    assert listed == 1
    other = make_silo(tmp_path / "south")
    answered(other, "one", 0.2)
    listed = 0
    newest = note.read_bytes()
    forged = json.dumps({**json.loads(newest), "sequence": 3, "entry": json.loads(old_note)["entry"]}).encode()
    for number, content in enumerate((old_note, forged, b"", b"{}", b"[]", b'{"signature": "00"}'), start=1):
        note.write_bytes(content)
        answered(silo, f"more-{number}", 0.05)
        assert listed == number
    (silo.folder / "state" / "ledger.sqlite").write_bytes(old_ledger)  # the note, of a longer ledger, does not help it
    with pytest.raises(LedgerError, match="at least"):
        answered(silo, "last", 0.05)
