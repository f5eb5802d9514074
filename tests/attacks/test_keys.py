"""Attacks on keys and databases at rest: files that were emptied, cut, exchanged, opened to others, or locked."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dpdd.client.cli import main as client
from dpdd.client.silo import Silo
from dpdd.common.errors import ConfigError, DpddError, IntegrityError, LedgerError
from dpdd.common.files.private_keys import FILE_VARIABLE
from dpdd.common.wire.release import open_signed
from dpdd.server.cli import main as server
from dpdd.server.run.store import Store
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.registry import Registry
from dpdd.server.transport.submitted import SubmittedRuns
from tests.client.silos import make_request, make_silo

Opener = Callable[[Path], Registry | Store | SubmittedRuns]
DATABASES: dict[str, tuple[Opener, str]] = {
    "registry": (lambda folder: Registry(folder / "registry.sqlite"), "registry.sqlite"),
    "store": (Store, "index.sqlite"),
    "queue": (lambda folder: SubmittedRuns(folder / "submitted.sqlite"), "submitted.sqlite"),
}
PASSPHRASE = "correct horse battery staple"


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[], object], Path]:
    """How to open a database that was made in good order, and its file."""
    opener, name = DATABASES[request.param]
    opener(tmp_path).close()
    opener(tmp_path).close()
    return lambda: opener(tmp_path), tmp_path / name


def refused(opened: Callable[[], object], path: Path, words: str) -> None:
    """Opening ends in one sentence that names the file; and changes nothing."""
    before = path.read_bytes()
    with pytest.raises(DpddError, match=words) as caught:
        opened()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_an_emptied_database_is_not_a_new_one(database: tuple[Callable[[], object], Path]) -> None:
    opened, path = database
    path.write_bytes(b"")
    refused(opened, path, "empty file.*restore it from a backup")


def test_a_truncated_database_is_not_used(database: tuple[Callable[[], object], Path]) -> None:
    opened, path = database
    whole = path.read_bytes()
    for size in (50, len(whole) // 2, len(whole) - 4096):
        path.write_bytes(whole[:size])
        refused(opened, path, "restore it from a backup")


def test_a_page_of_rubbish_is_found(database: tuple[Callable[[], object], Path]) -> None:
    opened, path = database
    path.write_bytes(path.read_bytes()[:-4096] + b"\xa5" * 4096)
    refused(opened, path, "damaged.*restore it from a backup")


def test_a_foreign_database_is_not_taken(database: tuple[Callable[[], object], Path]) -> None:
    opened, path = database
    path.write_bytes(b"name,epsilon\n" * 1000)
    refused(opened, path, "not an SQLite database")
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE customers (name TEXT)")
    db.close()
    refused(opened, path, "has no table")


def test_a_database_of_a_newer_program_is_left_alone(database: tuple[Callable[[], object], Path]) -> None:
    opened, path = database
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    refused(opened, path, "newer dpdd")


def test_a_database_without_a_version_still_opens(database: tuple[Callable[[], object], Path]) -> None:
    opened, path = database
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 0")
    db.close()
    opened()


def test_revocations_outlive_an_emptied_or_lost_registry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, path = tmp_path / "hub", tmp_path / "hub" / "state" / "registry.sqlite"
    here = Coordinator.initialise(home)
    here.enrol("north")
    here.registry.revoke("north")
    here.close()
    whole = path.read_bytes()
    path.write_bytes(b"")
    for command in (["status"], ["enrol", "north"]):
        assert server([*command, "--coordinator", str(home)]) == 1
        assert "empty file" in capsys.readouterr().err
    assert server(["init", str(home)]) == 1
    path.unlink()
    assert server(["init", str(home)]) == 9
    assert "registry of silos is gone" in capsys.readouterr().err and not path.exists()
    path.write_bytes(whole)
    assert server(["enrol", "north", "--coordinator", str(home)]) == 3
    assert "revoked" in capsys.readouterr().err


def test_an_emptied_ledger_is_not_a_new_one(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    path = silo.folder / "state" / "ledger.sqlite"
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="empty file"):
        Silo.initialise(silo.folder).ledger()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    silo, here = make_silo(tmp_path / "north"), Coordinator.initialise(tmp_path / "hub")
    here.close()
    for path in (silo.folder / "state" / "key.pem", *(here.folder / "state").glob("*.key")):
        path.chmod(mode)
        with pytest.raises(IntegrityError, match=f"open to others; `chmod 600 {path}`"):
            Silo(silo.folder) if path.name == "key.pem" else Coordinator(here.folder)
        path.chmod(0o600)
    Silo(silo.folder)
    Coordinator(here.folder).close()


@pytest.fixture
def passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "passphrase"
    path.touch(mode=0o600)
    path.write_text(f"{PASSPHRASE}\n")
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    return path


def encrypted_silo(folder: Path) -> Path:
    shutil.rmtree(make_silo(folder).folder / "state")
    assert client(["init", str(folder), "--encrypt-key"]) == 0
    return folder


def test_an_encrypted_key_signs_releases(tmp_path: Path, passphrase: Path) -> None:
    home = encrypted_silo(tmp_path / "north")
    assert (home / "state" / "key.pem").read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    request, release = tmp_path / "x.request", tmp_path / "x.release"
    request.write_bytes(make_request().encode())
    assert client(["answer", str(request), "--silo", str(home), "--out", str(release), "--quiet"]) == 0
    assert open_signed(release.read_bytes(), Silo(home).public_key).silo == "north"


def test_without_its_passphrase_a_silo_answers_nothing(
    tmp_path: Path, passphrase: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = encrypted_silo(tmp_path / "north")
    request, release = tmp_path / "x.request", tmp_path / "x.release"
    request.write_bytes(make_request().encode())
    ledger = (home / "state" / "ledger.sqlite").read_bytes()

    def fails(code: int, words: str) -> None:
        capsys.readouterr()
        assert client(["answer", str(request), "--silo", str(home), "--out", str(release), "--quiet"]) == code
        error = capsys.readouterr().err
        assert words in error and len(error.splitlines()) == 1
        assert PASSPHRASE not in error and not release.exists()
        assert (home / "state" / "ledger.sqlite").read_bytes() == ledger

    passphrase.write_text("another passphrase\n")
    fails(9, "the passphrase is wrong")
    passphrase.write_text("\n")
    fails(3, "is empty")
    passphrase.write_text(f"{PASSPHRASE}\n")
    passphrase.chmod(0o644)
    fails(9, "the passphrase is open to others")
    passphrase.unlink()
    fails(3, "cannot be read")
    monkeypatch.delenv(FILE_VARIABLE)
    fails(3, f"name its file in ${FILE_VARIABLE}")


def test_a_passphrase_file_lies_beside_silo_toml(
    tmp_path: Path, passphrase: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = encrypted_silo(tmp_path / "north")
    monkeypatch.delenv(FILE_VARIABLE)
    passphrase.rename(home / "secret")
    with (home / "silo.toml").open("a") as file:
        file.write('[keys]\npassphrase_file = "secret"\n')
    monkeypatch.chdir("/")
    Silo(home)
    Silo.initialise(home)


def test_a_coordinators_keys_are_encrypted_together(
    tmp_path: Path, passphrase: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "hub"
    assert server(["init", str(home), "--encrypt-key"]) == 0
    for path in (home / "state").glob("*.key"):
        assert path.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert server(["enrol", "north", "--coordinator", str(home)]) == 0
    capsys.readouterr()
    passphrase.write_text("another passphrase\n")
    assert server(["enrol", "south", "--coordinator", str(home)]) == 9
    assert "the passphrase is wrong" in capsys.readouterr().err


def test_a_short_passphrase_makes_nothing(tmp_path: Path, passphrase: Path) -> None:
    passphrase.write_text("short\n")
    with pytest.raises(ConfigError, match="at least 12 bytes, not 5"):
        Coordinator.initialise(tmp_path / "hub", encrypt_keys=True)
    assert not (tmp_path / "hub" / "authority.pem").exists() and not list((tmp_path / "hub" / "state").iterdir())


def test_a_key_that_is_there_is_not_silently_left_unencrypted(tmp_path: Path, passphrase: Path) -> None:
    silo, here = make_silo(tmp_path / "north"), Coordinator.initialise(tmp_path / "hub")
    here.close()
    with pytest.raises(ConfigError, match="there already, and not encrypted"):
        Silo.initialise(silo.folder, encrypt_key=True)
    with pytest.raises(ConfigError, match="there already, and not encrypted"):
        Coordinator.initialise(here.folder, encrypt_keys=True)
