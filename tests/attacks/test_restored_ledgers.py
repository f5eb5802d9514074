"""Old ledgers put back with all that was beside them: what lies outside shows it, and `recover` makes them whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from dpdd.client import recover as recover_module
from dpdd.client import rehearsal
from dpdd.client.anchor import Anchor, anchor_path
from dpdd.client.cli import main
from dpdd.client.ledger.ledger import Ledger
from dpdd.client.ledger.ledger_file import Draft
from dpdd.client.ledger.position import LedgerBehind, Position
from dpdd.client.recover import recover
from dpdd.client.silo import Silo
from dpdd.client.transport.stored_releases import StoredReleases, hear_position
from dpdd.client.transport.upload import manifest_of, upload
from dpdd.common.errors import IntegrityError, LedgerError
from dpdd.common.wire.answer import Refusal, SignedReleaseBytes
from dpdd.common.wire.release import open_signed
from dpdd.server.cli import main as server
from dpdd.v1 import exchange_pb2, release_pb2
from tests import staged
from tests.client.silos import make_request, make_silo
from tests.client.test_stages import ask, staged_silo
from tests.server.transport.worlds import World, running, sign_payload, until, world

staged_method = staged.staged_method
EACH = 0.3


def answered(silo: Silo, run: str) -> bytes:
    answer = silo.answer(make_request(run, EACH).encode())
    assert isinstance(answer, SignedReleaseBytes), answer
    return answer.data


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1, err
    return code, err


class Copies:
    """A silo's state as it was at some moment, and its anchor."""

    def __init__(self, silo: Silo) -> None:
        self._state, self._anchor = silo.folder / "state", silo.anchor
        self._copy = silo.folder.parent / f"{silo.folder.name}-copy"
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._state, self._copy)
        self._anchored = None if self._anchor is None else self._anchor.path.read_bytes()

    def put_back(self, *, anchor: bool = False) -> None:
        shutil.rmtree(self._state)
        shutil.copytree(self._copy, self._state)
        if anchor and self._anchor is not None:
            assert self._anchored is not None
            self._anchor.path.write_bytes(self._anchored)


def spent(silo: Silo) -> float:
    ledger = silo.ledger()
    try:
        ledger.verify()
        return ledger.status().spent
    finally:
        ledger.close()


def check_refuses(silo: Silo, words: str) -> None:
    """Nothing is answered, rehearsed or appended."""
    ledger = (silo.folder / "state" / "ledger.sqlite").read_bytes()
    for do in (silo.answer, lambda data: rehearsal.rehearse(silo, data)):
        with pytest.raises(LedgerError, match=words):
            do(make_request("one-more", 0.1).encode())
    assert (silo.folder / "state" / "ledger.sqlite").read_bytes() == ledger


# The anchor


def test_an_old_ledger_with_an_old_outbox_is_shown_by_the_anchor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silo = make_silo(tmp_path / "north")
    answered(silo, "one")
    copies = Copies(silo)
    answered(silo, "two")
    copies.put_back()
    check_refuses(Silo(silo.folder), "at least 2 entries are missing")
    code, err = failure(capsys, "preflight", "--silo", silo.folder)
    assert code == 8 and "dpdd-client recover" in err and "anchor" in err
    for command in ("budget", "log"):  # what is shown is not all that was spent, and says so
        code, err = failure(capsys, command, "--silo", silo.folder)
        assert code == 8 and "at least 2 entries are missing" in err
    assert failure(capsys, "budget", "--json", "--silo", silo.folder)[0] == 8
    with pytest.raises(LedgerBehind, match="at least 2 entries"):
        Silo(silo.folder).ledger().note("approve", "ab" * 32)
    code, err = failure(capsys, "recover", "--silo", silo.folder)
    assert code == 8 and "1 reservation is still missing" in err
    check_refuses(Silo(silo.folder), "at least 2 entries are missing")


def test_kept_in_the_users_state_folder_named_by_key_and_for_nobody_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    silo = make_silo(tmp_path / "north")
    make_silo(tmp_path / "south", extra="[simulation]\nnoise_seed = 3")
    assert [path.name for path in (tmp_path / "state" / "dpdd").glob("*.anchor")] == [f"{silo.public_key.hex()}.anchor"]
    own = make_silo(tmp_path / "west", extra='[ledger]\nanchor = "../west.anchor"')
    assert (tmp_path / "west.anchor").exists() and own.anchor is not None
    assert len(list((tmp_path / "state" / "dpdd").glob("*.anchor"))) == 1
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert anchor_path(bytes(32)) == Path.home() / ".local" / "state" / "dpdd" / f"{'00' * 32}.anchor"


def test_an_anchor_that_was_deleted_begins_again_and_the_operator_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silo = make_silo(tmp_path / "north")
    assert main(["preflight", "--silo", str(silo.folder)]) == 0
    assert "anchor of the ledger" not in capsys.readouterr().out
    answered(silo, "one")
    assert silo.anchor is not None
    silo.anchor.path.unlink()
    for words in ("there was no anchor", "began at entry 3"):
        assert main(["preflight", "--silo", str(silo.folder)]) == 0
        assert words in capsys.readouterr().out
    answered(silo, "two")
    known = silo.anchor.read()
    assert known is not None and known.begun_at == 3 and known.position.sequence == 5
    assert known.position.reservations == 2


def test_the_anchor_of_another_silo_and_a_forged_one_are_refused(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north", extra='[ledger]\nanchor = "../anchor"')
    answered(silo, "one")
    other = make_silo(tmp_path / "south")
    assert silo.anchor is not None and other.anchor is not None
    path, newest = silo.anchor.path, silo.anchor.path.read_bytes()
    path.write_bytes(other.anchor.path.read_bytes())
    with pytest.raises(IntegrityError, match="anchor of another silo"):
        answered(silo, "two")
    for change in ({"sequence": 1}, {"reservations": 0}, {"signature": "00" * 64}, {"key": None}):
        path.write_text(json.dumps({**json.loads(newest), **change}))
        with pytest.raises(IntegrityError, match="anchor"):
            answered(silo, "two")
    for garbage in (b"", b"{", b"[1]", b'{"signature": 7}', newest[:-30]):
        path.write_bytes(garbage)
        with pytest.raises(IntegrityError, match="damaged or altered"):
            answered(silo, "two")
    path.write_bytes(newest)
    answered(silo, "two")


def test_a_crash_between_ledger_and_anchor_leaves_it_behind_by_one_which_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    silo = make_silo(tmp_path / "north")
    with monkeypatch.context() as patched:
        patched.setattr(Anchor, "_write", crash)
        with pytest.raises(KeyboardInterrupt):
            answered(silo, "one")
    assert silo.anchor is not None
    assert silo.anchor.read().position.sequence == 1  # type: ignore[union-attr]
    assert not silo.outbox.ids(), "released before the anchor was written"
    answered(silo, "one")
    assert silo.anchor.read().position.sequence == 3  # type: ignore[union-attr]
    ledger = silo.ledger()
    assert [entry.kind for entry in ledger.entries()] == ["open", "reserve", "commit"]


def test_nothing_is_released_where_the_anchor_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    silo = make_silo(tmp_path / "north")
    with monkeypatch.context() as patched:
        patched.setattr("dpdd.client.anchor.write_atomically", full)
        with pytest.raises(LedgerError, match="nothing is released"):
            answered(silo, "one")
    assert not silo.outbox.ids()
    first = answered(silo, "one")
    assert answered(silo, "one") == first and spent(silo) < 0.31


def test_a_silo_that_was_copied_and_went_on_twice_stops(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    answered(silo, "one")
    shutil.copytree(silo.folder, tmp_path / "twin" / "north")
    twin = Silo(tmp_path / "twin" / "north")
    answered(silo, "two")
    check_refuses(twin, "at least 2 entries")


# Recovery from the outbox


def check_recovered(silo: Silo, before: float, answers: dict[str, bytes]) -> None:
    """As much is spent as was, and the same requests get the same bytes."""
    silo = Silo(silo.folder)
    assert spent(silo) >= before * (1 - 1e-12)
    for run, data in answers.items():
        assert answered(silo, run) == data
    assert spent(silo) == pytest.approx(before, rel=1e-9)
    again = recover(silo, None)
    assert (again.entries, again.missing, list(again.releases)) == (0, 0, [])
    refused = silo.answer(make_request("too-much", 1.0).encode())
    assert isinstance(refused, Refusal)
    answered(silo, "later")


@pytest.mark.parametrize("lost", ["old", "deleted"])
def test_a_ledger_is_rebuilt_from_the_outbox(tmp_path: Path, lost: str, capsys: pytest.CaptureFixture[str]) -> None:
    silo = make_silo(tmp_path / "north")
    path = silo.folder / "state" / "ledger.sqlite"
    answers = {"one": answered(silo, "one")}
    old = path.read_bytes()
    answers |= {run: answered(silo, run) for run in ("two", "three")}
    before = spent(silo)
    path.write_bytes(old) if lost == "old" else path.unlink()
    with pytest.raises(LedgerError):
        answered(silo, "four")
    assert main(["recover", "--dry-run", "--json", "--silo", str(silo.folder)]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["missing"] == 0 and len(planned["releases"]) == (2 if lost == "old" else 3)
    assert path.exists() == (lost == "old") and (lost == "deleted" or path.read_bytes() == old)
    assert main(["recover", "--silo", str(silo.folder)]) == 0
    assert "the ledger is whole" in capsys.readouterr().out
    check_recovered(silo, before, answers)
    for command in ("log", "budget", "preflight"):
        assert main([command, "--silo", str(silo.folder)]) == 0
    out = capsys.readouterr().out
    assert "recovered, 1 of 1 released" in out and "the end of a recovery" in out


def test_recovery_gives_no_fresh_budget_where_everything_was_deleted(tmp_path: Path) -> None:
    """Ledger, outbox and anchor: nothing is left that could count."""
    silo = make_silo(tmp_path / "north")
    first = answered(silo, "one")
    answered(silo, "two")
    path, two = silo.folder / "state" / "ledger.sqlite", silo.outbox.path(make_request("two", EACH).id)
    path.unlink()
    two.unlink()
    assert silo.anchor is not None
    anchor = silo.anchor.path.read_bytes()
    silo.anchor.path.unlink()
    for kept in (True, False):
        if not kept:
            silo.outbox.path(make_request("one", EACH).id).unlink()
        assert recover(silo, None).missing is None and not path.exists()
    silo.anchor.path.write_bytes(anchor)
    assert recover(silo, None).missing == 2 and not path.exists()
    silo.anchor.path.unlink()
    silo.outbox.put(make_request("one", EACH).id, first)
    assert recover(silo, None, write_off=True).written_off
    assert answered(silo, "one") == first
    assert isinstance(silo.answer(make_request("tiny", 0.01).encode()), Refusal)


def test_a_ledger_that_was_lost_before_anything_was_spent_is_made_again(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    (silo.folder / "state" / "ledger.sqlite").unlink()
    assert recover(silo, None).missing == 0
    answered(silo, "one")


def test_a_recovered_ledger_takes_no_number_that_a_release_has_named(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    ledger = silo.ledger()
    for number in range(20):  # decisions, which no release tells of
        ledger.note("deny", f"{number:064x}", {"why": "not now"})
    ledger.close()
    named = [open_signed(answered(silo, run)).payment for run in ("one", "two")]
    (silo.folder / "state" / "ledger.sqlite").unlink()
    recover(silo, None)
    later = open_signed(answered(silo, "three")).payment
    assert later is not None and all(each is not None and later.position > each.position for each in named)
    assert later.reservations == 3


def test_an_anchor_does_not_follow_a_ledger_that_is_behind_it(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    path = silo.folder / "state" / "ledger.sqlite"
    old = path.read_bytes()
    answered(silo, "one")
    assert silo.anchor is not None
    newest = silo.anchor.path.read_bytes()
    path.write_bytes(old)
    ledger = silo.ledger()
    ledger.follow_anchor()
    assert silo.anchor.path.read_bytes() == newest
    ledger.rebuild([Draft("resume", "", {"entry": "", "position": 0}, 50)])  # further, and still another
    assert silo.anchor.path.read_bytes() == newest


@pytest.mark.usefixtures("staged_method")
def test_stages_are_rebuilt_and_none_is_released_for_another_input(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north")
    first, second, third = ask(), ask(1), ask(2)
    answers = {request.id: silo.answer(request.encode()) for request in (first, second)}
    before = spent(silo)
    (silo.folder / "state" / "ledger.sqlite").unlink()
    silo.outbox.path(first.id).unlink()  # the later stage's release alone tells of all of them
    assert recover(silo, None).missing == 0
    assert spent(silo) == pytest.approx(before, rel=1e-12)
    assert silo.answer(second.encode()) == answers[second.id]
    assert isinstance(silo.answer(ask(1, 0.7).encode()), Refusal)
    for lost in (first, third):  # nobody knows whether such a release is out there
        with pytest.raises(LedgerError, match="before this ledger was rebuilt"):
            silo.answer(lost.encode())
    silo.outbox.put(first.id, answers[first.id].data)  # type: ignore[union-attr]
    assert recover(silo, None).missing == 0
    assert silo.answer(first.encode()) == answers[first.id] and spent(silo) == pytest.approx(before, rel=1e-12)


def test_what_nobody_can_rebuild_is_counted_and_closes_the_budget_only_when_the_operator_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silo = make_silo(tmp_path / "north")
    path = silo.folder / "state" / "ledger.sqlite"
    old, kept = path.read_bytes(), answered(silo, "one")
    answered(silo, "two")
    answered(silo, "three")
    for run in ("two", "three"):
        silo.outbox.path(make_request(run, EACH).id).unlink()
    path.write_bytes(old)
    code, err = failure(capsys, "recover", "--silo", silo.folder)
    assert code == 8 and "2 reservations are still missing" in err and "--write-off" in err
    code, err = failure(capsys, "recover", "--silo", silo.folder)  # still
    assert code == 8 and "2 reservations" in err
    assert main(["recover", "--write-off", "--dry-run", "--silo", str(silo.folder)]) == 0
    check_refuses(silo, "at least")
    assert path.read_bytes() == old
    assert main(["recover", "--write-off", "--silo", str(silo.folder)]) == 0
    assert "nothing more can be spent" in capsys.readouterr().out
    silo = Silo(silo.folder)
    assert answered(silo, "one") == kept
    refused = silo.answer(make_request("tiny", 0.01).encode())
    assert isinstance(refused, Refusal) and "written off" in refused.message
    assert isinstance(silo.answer(make_request("two", EACH).encode()), Refusal)
    assert main(["recover", "--silo", str(silo.folder)]) == 0


def test_a_recovery_that_is_interrupted_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before the entries, in the middle of their transaction, and before a new ledger gets its name."""
    for number, (lost, target, name) in enumerate(
        [
            ("old", Ledger, "rebuild"),
            ("old", Ledger, "_store"),
            ("deleted", Ledger, "_store"),
            ("deleted", recover_module, "sync_folder"),
            ("deleted", recover_module.os, "link"),
        ]
    ):
        silo = make_silo(tmp_path / f"north-{number}")
        path = silo.folder / "state" / "ledger.sqlite"
        answers = {"one": answered(silo, "one")}
        old = path.read_bytes()
        answers["two"] = answered(silo, "two")
        before = spent(silo)
        path.write_bytes(old) if lost == "old" else path.unlink()
        calls, original = 0, getattr(target, name)

        last = 2 if name == "_store" else 1

        def crash(*arguments: Any, last: int = last, original: Any = original) -> Any:
            nonlocal calls
            calls += 1
            if calls == last:
                raise KeyboardInterrupt
            return original(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(target, name, crash)
            with pytest.raises(KeyboardInterrupt):
                recover(silo, None)
        assert calls
        if not path.exists() or name != "sync_folder":
            with pytest.raises(LedgerError):
                answered(Silo(silo.folder), "three")
            assert recover(Silo(silo.folder), None).missing == 0
        check_recovered(silo, before, answers)
        assert not list((silo.folder / "state").glob(".recovering-*"))


def test_a_release_that_does_not_state_what_was_paid_closes_the_budget(tmp_path: Path) -> None:
    """As releases of earlier versions: one of several stages may be the only one that is left."""
    silo = make_silo(tmp_path / "north")
    path = silo.folder / "state" / "ledger.sqlite"
    old, data = path.read_bytes(), answered(silo, "one")
    release = release_pb2.Release.FromString(release_pb2.SignedRelease.FromString(data).release)
    release.ClearField("payment")
    plain = sign_payload(silo, release.SerializeToString())
    assert open_signed(plain, silo.public_key).payment is None
    path.write_bytes(old)
    silo.outbox.path(make_request("one", EACH).id).unlink()
    silo.outbox.put(make_request("one", EACH).id, plain)
    assert recover(silo, None).missing is None
    check_refuses(silo, "at least 1 entry")
    assert recover(silo, None, write_off=True).written_off
    assert answered(silo, "one") == plain
    assert isinstance(silo.answer(make_request("two", 0.01).encode()), Refusal)


def test_a_silo_that_keeps_its_position_to_itself_states_the_rest(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north", extra="tell_ledger_position = false")
    path = silo.folder / "state" / "ledger.sqlite"
    old, data = path.read_bytes(), answered(silo, "one")
    payment = open_signed(data).payment
    assert payment is not None and (payment.position, payment.reservations, payment.run) == (0, 0, "one")
    before = spent(silo)
    path.write_bytes(old)
    assert recover(silo, None).missing == 0  # the anchor counts
    assert answered(silo, "one") == data and spent(silo) == pytest.approx(before, rel=1e-12)


def test_what_went_on_by_itself_after_the_loss_cannot_be_counted(tmp_path: Path) -> None:
    """A fork: the restored ledger paid for something before its loss was noticed."""
    silo = make_silo(tmp_path / "north")
    answered(silo, "one")
    copies = Copies(silo)
    lost = answered(silo, "two")
    copies.put_back(anchor=True)
    silo = Silo(silo.folder)
    answered(silo, "fork")
    silo.outbox.put(make_request("two", EACH).id, lost)  # it turns up
    check_refuses(silo, "at least 1 entry is missing")
    assert recover(silo, None).missing is None
    check_refuses(silo, "at least 1 entry is missing")
    assert recover(silo, None, write_off=True).written_off
    assert answered(silo, "two") == lost and spent(silo) >= 0.5


def test_a_second_release_for_one_request_is_paid_for_a_second_time(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    copies = Copies(silo)
    first = answered(silo, "one")
    once = spent(silo)
    copies.put_back(anchor=True)
    silo = Silo(silo.folder)
    second = answered(silo, "one")
    assert first != second
    silo.outbox.path(make_request("one", EACH).id).write_bytes(first)
    with pytest.raises(IntegrityError, match="is not the release in the ledger"):
        answered(silo, "one")
    assert recover(silo, None, write_off=True).written_off
    ledger = silo.ledger()
    assert ledger.status().reserved == 2 and ledger._now().spent.mu > 1.4 * 0.06 and once > 0


# The coordinator


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as a_world:
        yield a_world


def deliver(here: World, silo: Silo, run: str) -> bytes:
    """One request over the exchange; what the coordinator stored."""
    request = make_request(run, EACH)
    here.ask(silo, request=request)
    with running(silo):
        until(lambda: here.queue.digest(request.id, silo.settings.name))
        until(lambda: told(silo) is not None and told(silo).entry == entry_of(here, silo, request.id))  # type: ignore[union-attr]
    return here.queue.read(here.queue.digest(request.id, silo.settings.name) or "")


def told(silo: Silo) -> Position | None:
    return silo.coordinator_memory.read().shown


def entry_of(here: World, silo: Silo, request_id: str) -> str:
    return open_signed(here.queue.read(here.queue.digest(request_id, silo.settings.name) or "")).ledger_entry


def test_everything_was_restored_and_only_the_coordinator_knows_more(
    here: World, capsys: pytest.CaptureFixture[str]
) -> None:
    silo = here.silo("north")
    deliver(here, silo, "one")
    copies = Copies(silo)
    second = deliver(here, silo, "two")
    before = spent(silo)
    copies.put_back(anchor=True)
    silo = Silo(silo.folder)
    third = make_request("three", EACH)
    here.ask(silo, request=third)
    with running(silo):
        until(lambda: (row := here.queue.row(third.id, "north")) is not None and row.state == "in trouble")
    check_refuses(silo, "a release that its coordinator has")
    code, err = failure(capsys, "recover", "--offline", "--silo", silo.folder)
    assert code == 8 and "cannot be told" in err  # what the coordinator has shown, the outbox does not have
    address = f"127.0.0.1:{here.port}"
    assert main(["recover", "--silo", str(silo.folder), "--address", address]) == 0
    assert "put back into the outbox" in capsys.readouterr().out
    silo = Silo(silo.folder)
    assert spent(silo) == pytest.approx(before, rel=1e-12)
    assert answered(silo, "two") == second
    deliver(here, silo, "four")
    assert here.coordinator.ledger_positions.forks("north") == []
    assert main(["recover", "--silo", str(silo.folder), "--address", address]) == 0


def test_a_ledger_that_is_gone_with_its_outbox_is_rebuilt_from_the_coordinator(here: World) -> None:
    silo = here.silo("north")
    answers = {run: deliver(here, silo, run) for run in ("one", "two")}
    before = spent(silo)
    (silo.folder / "state" / "ledger.sqlite").unlink()
    shutil.rmtree(silo.folder / "state" / "outbox")
    (silo.folder / "state" / "outbox").mkdir()
    with here.channel(silo) as channel:
        done = recover(silo, StoredReleases(channel))
    assert done.missing == 0 and len(done.restored) == 2
    check_recovered(silo, before, answers)


def test_a_fork_is_noticed_remembered_and_named(here: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A silo whose software does not care: it answers with an old ledger, and the numbers do not fit."""
    silo = here.silo("north")
    copies = Copies(silo)
    deliver(here, silo, "one")
    copies.put_back(anchor=True)
    silo = Silo(silo.folder)
    request = make_request("two", EACH)
    here.ask(silo, request=request)
    data = answered(silo, "two")
    path = here.folder / "fork"
    path.write_bytes(data)
    with here.channel(silo) as channel:
        upload(channel, path, manifest_of(path, request.id), lambda _: None)
    (fork,) = here.coordinator.ledger_positions.forks("north")
    assert "two ledgers with an entry 2" in fork
    capsys.readouterr()
    assert server(["status", "--coordinator", str(here.folder / "coordinator")]) == 0
    assert f"WARNING, a fork: {fork}" in capsys.readouterr().out


def test_what_a_coordinator_showed_once_stops_an_older_ledger_for_good(tmp_path: Path) -> None:
    """Ledger, outbox and anchor were put back together: only what was shown remembers more."""
    silo = make_silo(tmp_path / "north")
    answered(silo, "one")
    copies = Copies(silo)
    answered(silo, "two")
    with closing(silo.ledger()) as ledger:
        shown = ledger.position()
    copies.put_back(anchor=True)
    silo = Silo(silo.folder)
    answered(silo, "three")
    with closing(silo.ledger()) as ledger:
        silo.coordinator_memory.hear(shown, ledger, lambda: shown)
    check_refuses(silo, "a release that its coordinator has")


def test_a_coordinator_that_invents_a_position_gets_no_answer_and_nobody_else_is_harmed(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = here.silo("north")
    deliver(here, silo, "one")
    lie = exchange_pb2.LedgerPosition(sequence=99, entry=bytes(32)).SerializeToString()
    honest = StoredReleases._call
    with monkeypatch.context() as patched:
        patched.setattr(
            StoredReleases, "_call", lambda self, name, data: lie if name == "Position" else honest(self, name, data)
        )
        request = make_request("two", EACH)
        here.ask(silo, request=request)
        with running(silo):
            until(lambda: (row := here.queue.row(request.id, "north")) is not None and row.state == "in trouble")
        assert silo.coordinator_memory.read().claimed == Position(99, "00" * 32)
        answered(silo, "by-file")  # for somebody else
        with here.channel(silo) as channel:
            assert "shows no release" in hear_position(channel, silo)
        with here.channel(silo) as channel:
            assert recover(silo, StoredReleases(channel)).missing == 0
    with here.channel(silo) as channel:
        assert hear_position(channel, silo) == ""  # it takes that back
    assert silo.coordinator_memory.read().claimed is None
    deliver(here, silo, "three")


def test_an_older_coordinator_that_keeps_no_count_is_no_trouble(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unimplemented(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNIMPLEMENTED

    def unimplemented(*_: object) -> bytes:
        raise Unimplemented

    silo = here.silo("north")
    monkeypatch.setattr(StoredReleases, "_call", unimplemented)
    request = make_request("one", EACH)
    here.ask(silo, request=request)
    with running(silo):
        until(lambda: here.queue.digest(request.id, "north"))
    assert told(silo) is None


def test_a_coordinator_hands_a_silo_its_own_releases_only(here: World) -> None:
    north, south = here.silo("north"), here.silo("south")
    deliver(here, north, "one")
    with here.channel(north) as channel:
        (mine,) = StoredReleases(channel).stored()
    with here.channel(south) as channel:
        source = StoredReleases(channel)
        assert list(source.stored()) == [] and source.position() is None
        with pytest.raises(grpc.RpcError) as caught:
            source.fetch(mine, here.folder / "stolen")
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS  # type: ignore[attr-defined]


def test_a_release_of_another_silo_from_a_coordinator_changes_nothing(here: World) -> None:
    north, south = here.silo("north"), here.silo("south")
    deliver(here, south, "one")
    with here.channel(south) as channel:
        source = StoredReleases(channel)
        with pytest.raises(IntegrityError, match="another key"):
            recover(north, source)
    assert north.outbox.ids() == [] and spent(north) == 0.0
    assert not list((north.folder / "state").glob(".recovering-*"))
