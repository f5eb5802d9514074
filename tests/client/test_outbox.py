"""The outbox never replaces a release, and shows no half-written one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdd.client.durable import exclusive, write_new
from dpdd.client.outbox import Outbox
from dpdd.common.errors import LedgerError

ID = "ab" * 32


def test_the_first_release_stays(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    assert outbox.get(ID) is None
    assert outbox.put(ID, b"first") == b"first"
    assert outbox.put(ID, b"second") == b"first"
    assert outbox.get(ID) == b"first" and outbox.ids() == [ID]
    assert [path.name for path in tmp_path.iterdir()] == [f"{ID}.release"]


def test_leftovers_of_an_interrupted_write_are_not_releases(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    (tmp_path / f".{ID}.release.0123.partial").write_bytes(b"half")
    assert outbox.get(ID) is None and outbox.ids() == []
    outbox.clean()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "AB" * 32, "ab" * 31])
def test_only_request_ids_become_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a request id"):
        Outbox(tmp_path).put(name, b"x")


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(LedgerError, match="No space left"):
        Outbox(tmp_path).put(ID, b"x" * 1000)
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_gets_its_mode(tmp_path: Path) -> None:
    assert write_new(tmp_path / "key", b"secret", mode=0o600)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_the_lock_is_exclusive_and_says_who_waits(tmp_path: Path) -> None:
    waited = []
    with (
        exclusive(tmp_path / "lock", 1.0),
        pytest.raises(LedgerError, match="another dpdd process"),
        exclusive(tmp_path / "lock", 0.05, lambda: waited.append(1)),
    ):
        pass
    assert waited == [1]
    with exclusive(tmp_path / "lock", 0.05):
        pass
