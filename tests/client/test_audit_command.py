"""`dpdd-client audit`: on a copy of the records, before the silo goes live, and never on the live budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpdd.client.cli import main
from dpdd.client.commands import audit as command
from dpdd.client.mechanisms import base
from dpdd.common.privacy.auditing import OneRun
from tests.client.silos import make_request, make_silo

COORDINATOR = f"""
[coordinator]
address = "127.0.0.1:1"
authority_sha256 = "{"0" * 64}"
request_key = "{"0" * 64}"
"""


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def asked(tmp_path: Path) -> str:
    path = tmp_path / "asked.request"
    path.write_bytes(make_request().encode())
    return str(path)


def run(folder: Path, *options: str) -> int:
    return main(["audit", *options, "--silo", str(folder), "--canaries", "60", "--seed", "5", "--quiet"])


def test_a_silo_is_audited_and_nothing_of_it_changes(
    tmp_path: Path, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    silo = make_silo(tmp_path / "north")
    before = files(silo.folder)
    assert run(silo.folder, asked, "--out", str(tmp_path / "audit.json")) == 0
    out, _ = capsys.readouterr()
    assert "claimed          ε = 1 at δ = 1e-05" in out and "no audit proves one" in out
    assert "no budget of this silo was spent" in out
    assert files(silo.folder) == before
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["claimed"] == {"epsilon": 1.0, "delta": 1e-05} and found["canaries"] == 60 and not found["refuted"]


def test_a_folder_that_has_no_state_yet_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_silo(tmp_path / "north").folder
    (folder / "state").rename(tmp_path / "elsewhere")
    assert run(folder, "--alone", "--json", "--epsilon", "2") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == "dp-merf" and found["claimed"]["epsilon"] == 2.0
    assert not (folder / "state").exists()


def test_the_same_seed_audits_the_same(tmp_path: Path, asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_silo(tmp_path / "north").folder
    printed = []
    for _ in range(2):
        assert run(folder, asked, "--json") == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.parametrize("case", ["used", "released", "joined"])
def test_a_live_silo_is_refused_in_a_sentence(
    case: str, tmp_path: Path, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    silo = make_silo(tmp_path / "north", extra=COORDINATOR if case == "joined" else "")
    if case == "released":
        silo.answer(make_request().encode())
        why = "has released something"
    elif case == "used":
        silo.answer(make_request().encode())
        for path in (silo.folder / "state" / "outbox").glob("*.release"):
            path.unlink()
        why = "ledger has been used"
    else:
        why = "has joined a coordinator"
    assert run(silo.folder, asked) == 3
    err = capsys.readouterr().err
    assert why in err and "audit the copy" in err and len(err.strip().splitlines()) == 1


def test_a_request_about_other_records_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, path = make_silo(tmp_path / "north").folder, tmp_path / "other.request"
    path.write_bytes(make_request(classes=("ant", "bee")).encode())
    assert run(folder, str(path)) == 3
    assert "other classes, shapes or columns" in capsys.readouterr().err
    assert run(folder, str(path), "--method", "sps") == 3
    assert "not both" in capsys.readouterr().err


def test_a_build_that_claims_too_little_is_an_error(
    tmp_path: Path, asked: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpdd.client.auditing import one_run

    def revealing(*arguments: object) -> object:
        found = original(*arguments)
        return replace(found, one_run=OneRun(60, 60, 60), one_run_bound=3.5)

    original = one_run.audit
    monkeypatch.setattr(one_run, "audit", revealing)
    assert run(make_silo(tmp_path / "north").folder, asked) == 1
    out, err = capsys.readouterr()
    assert "REFUTED" in out and "do not go live" in err


def test_recording_ends_with_the_audit(tmp_path: Path, asked: str) -> None:
    """What an audit patches to see canaries is as it was afterwards, whatever happens."""
    from dpdd.common.privacy.clipping import ClippedSum

    before = (ClippedSum.add, ClippedSum._take, base.privatise)
    run(make_silo(tmp_path / "north").folder, asked)
    assert (ClippedSum.add, ClippedSum._take, base.privatise) == before
    assert command.refuse_live is not None
