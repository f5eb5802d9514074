"""The operator's command: what it prints, and that whatever is wrong comes out as one sentence."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from dpdd.client.cli import main
from tests.client.silos import make_request, make_silo


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def failed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence that a failing command prints."""
    code, out, err = run(capsys, *arguments)
    assert code not in (0, 70), err
    assert out == ""
    assert len(err.splitlines()) == 1 and err.startswith("dpdd-client: error: "), err
    assert "Traceback" not in err
    return err


def test_from_an_empty_folder_to_a_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "ward-7"
    code, out, _ = run(capsys, "init", home)
    assert code == 0 and "silo.toml" in out
    prepared = make_silo(tmp_path / "prepared" / "ward-7")
    shutil.copy(prepared.folder / "silo.toml", home / "silo.toml")
    shutil.copy(prepared.folder / "records.npz", home / "records.npz")
    code, out, _ = run(capsys, "init", home)
    assert code == 0 and "made its key and its ledger" in out
    code, out, _ = run(capsys, "preflight", "--silo", home)
    assert code == 0 and "60 records" in out and "ready" in out
    request = tmp_path / "x.request"
    request.write_bytes(make_request().encode())
    code, out, _ = run(capsys, "plan", request, "--silo", home, "--quick")
    assert code == 0 and "it fits into the budget" in out and "σ = 3.73" in out
    code, out, _ = run(capsys, "answer", request, "--silo", home, "--out", tmp_path / "x.release", "--quiet")
    assert code == 0 and (tmp_path / "x.release").stat().st_size > 500
    code, out, _ = run(capsys, "plan", request, "--silo", home, "--quick")
    assert code == 0 and "costs nothing" in out
    code, out, _ = run(capsys, "budget", "--silo", home)
    assert code == 0 and "released" in out and "remaining" in out
    code, out, _ = run(capsys, "budget", "--silo", home, "--json")
    assert json.loads(out)["spent"] == pytest.approx(1.0, abs=1e-6)
    code, out, _ = run(capsys, "log", "--silo", home)
    assert code == 0 and "the ledger is intact" in out
    code, out, _ = run(capsys, "log", "--silo", home, "--json")
    assert [entry["kind"] for entry in json.loads(out)] == ["open", "reserve", "commit"]
    other = tmp_path / "y.request"
    other.write_bytes(make_request(run="again").encode())
    code, out, _ = run(capsys, "plan", other, "--silo", home, "--quick")
    assert code == 0 and "does NOT fit" in out
    assert "over budget" in failed(capsys, "answer", other, "--silo", home, "--quiet", "--out", tmp_path / "y.release")


def test_the_template_that_init_writes_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run(capsys, "init", tmp_path / "north")[0] == 0
    assert "images" in failed(capsys, "preflight", "--silo", tmp_path / "north")


def test_the_plan_touches_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silo = make_silo(tmp_path / "north")
    (silo.folder / "records.npz").unlink()
    request = tmp_path / "x.request"
    request.write_bytes(make_request().encode())
    code, out, _ = run(capsys, "plan", request, "--silo", silo.folder, "--json", "--quick")
    assert code == 0 and json.loads(out)["fits"] is True
    assert silo.ledger().status().reserved == 0


def test_approving_and_denying(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silo = make_silo(tmp_path / "north", approval="ask", epsilon=2.0)
    for name in ("one", "two"):
        silo.answer(make_request(run=name).encode())
    _, out, _ = run(capsys, "requests", "--silo", silo.folder, "--json")
    waiting = {entry["run"]: entry["id"] for entry in json.loads(out)}
    assert set(waiting) == {"one", "two"}
    assert run(capsys, "approve", waiting["one"][:12], "--silo", silo.folder)[0] == 0
    assert run(capsys, "deny", waiting["two"][:12], "--why", "no", "--silo", silo.folder)[0] == 0
    assert "no request is waiting" in run(capsys, "requests", "--silo", silo.folder)[1]
    failed(capsys, "approve", "0000", "--silo", silo.folder)


def test_a_plan_takes_a_file_or_the_start_of_a_waiting_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = make_silo(tmp_path / "north", approval="ask", epsilon=2.0)
    requests = [make_request(run=f"run-{number}") for number in range(20)]
    for request in requests:
        silo.answer(request.encode())
    first = requests[0]
    path = silo.folder / "state" / "requests" / f"{first.id}.request"
    by_file, by_id = (run(capsys, "plan", name, "--silo", silo.folder, "--quick") for name in (path, first.id[:12]))
    assert by_file == by_id and by_id[0] == 0 and "run-0" in by_id[1]
    shared = next(r.id[0] for r in requests if sum(o.id[0] == r.id[0] for o in requests) > 1)  # 20 ids, 16 letters
    assert "more than one waiting request" in failed(capsys, "plan", shared, "--silo", silo.folder)
    assert "no waiting request" in failed(capsys, "plan", "0" * 64, "--silo", silo.folder)
    assert "cannot be read" in failed(capsys, "plan", "nothing.request", "--silo", silo.folder)
    monkeypatch.chdir(tmp_path)  # a file goes before an id
    Path(first.id[:12]).write_bytes(requests[1].encode())
    assert "run-1" in run(capsys, "plan", first.id[:12], "--silo", silo.folder, "--quick")[1]


def test_the_log_names_releases_that_are_gone_or_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silo = make_silo(tmp_path / "north", epsilon=4.0)
    kept, gone, changed = (make_request(run=name, epsilon=0.5) for name in ("kept", "gone", "changed"))
    for request in (kept, gone, changed):
        silo.answer(request.encode())
    assert run(capsys, "log", "--silo", silo.folder)[0] == 0
    backup = {request.id: silo.outbox.path(request.id).read_bytes() for request in (gone, changed)}
    silo.outbox.path(gone.id).unlink()
    silo.outbox.path(changed.id).write_bytes(backup[changed.id][:-1] + bytes([backup[changed.id][-1] ^ 1]))
    code, out, err = run(capsys, "log", "--silo", silo.folder)
    assert code == 9 and len(err.splitlines()) == 1 and "2 of 3 releases" in err and "backup" in err
    assert f"{gone.id}.release is missing" in err and f"{changed.id}.release is changed" in err and kept.id not in err
    lines = [line for line in out.splitlines() if "in the outbox" in line]
    assert [(gone.id[:12] in line, "MISSING" in line) for line in lines] == [(True, True), (False, False)]
    assert "the ledger is intact" in out
    code, out, _ = run(capsys, "log", "--silo", silo.folder, "--json")
    states = {entry["request"]: entry["outbox"] for entry in json.loads(out) if entry["kind"] == "commit"}
    assert code == 9 and states == {kept.id: "kept", gone.id: "missing", changed.id: "changed"}
    for request_id, data in backup.items():  # the advice helps
        silo.outbox.path(request_id).write_bytes(data)
    assert run(capsys, "log", "--silo", silo.folder)[0] == 0


def test_a_ledger_cut_short_shows_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silo = make_silo(tmp_path / "north")
    fresh = (silo.folder / "state" / "ledger.sqlite").read_bytes()
    silo.answer(make_request().encode())
    (silo.folder / "state" / "ledger.sqlite").write_bytes(fresh)
    assert "cut short" in failed(capsys, "log", "--silo", silo.folder)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("epsilon = 1.0\ndelta", "epsilon = -1\ndelta"), "budget.epsilon"),
        (("epsilon = 1.0\ndelta", "epsilon = 99\ndelta"), "budget.epsilon"),
        (('approval = "auto"', 'approval = "maybe"'), "policy.approval"),
        (('methods = ["dp-merf"]', 'methods = ["dp-magic"]'), "dp-magic"),
        (('name = "north"', 'name = "no/th"'), "name"),
        (('path = "records.npz"', ""), "path"),
        (("[policy]", "[policy]\ncolour = 1"), "policy.colour"),
        (("[policy]", "[policy"), "TOML"),
        (('format = "npz"', 'format = "xls"'), "data.format"),
    ],
)
def test_a_wrong_key_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], word: str
) -> None:
    silo = make_silo(tmp_path / "north")
    path = silo.folder / "silo.toml"
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    assert word in failed(capsys, "budget", "--silo", silo.folder)


def test_no_silo_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "silo.toml" in failed(capsys, "budget", "--silo", tmp_path)
    assert "dpdd-client init" in failed(capsys, "budget", "--silo", tmp_path / "nowhere")
    make_silo(tmp_path / "north")
    shutil.rmtree(tmp_path / "north" / "state")
    assert "init" in failed(capsys, "log", "--silo", tmp_path / "north")


def test_debug_shows_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, "budget", "--silo", tmp_path, "--debug")
    assert "Traceback" in err


def test_fuzzed_settings_give_one_sentence_or_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silo = make_silo(tmp_path / "north")
    path = silo.folder / "silo.toml"
    text = path.read_bytes()
    rng = random.Random(11)
    for _ in range(300):
        broken = bytearray(text)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(broken))
            match rng.randrange(4):
                case 0:
                    broken[at] = rng.randrange(256)
                case 1:
                    del broken[at : at + rng.randint(1, 30)]
                case 2:
                    broken[at:at] = rng.choice([b"nan", b"[", b"=", b"\n", b"inf", b"-", b"'''", b"1e999", b"{}"])
                case _:
                    broken[at:at] = broken[: rng.randrange(60)]
        path.write_bytes(broken)
        code, _, err = run(capsys, "budget", "--silo", silo.folder)
        assert code != 70, err
        assert code == 0 or len(err.splitlines()) == 1, err


def test_fuzzed_requests_and_truncated_files_give_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silo = make_silo(tmp_path / "north")
    whole = make_request().encode()
    rng = random.Random(12)
    request = tmp_path / "x.request"
    for _ in range(200):
        broken = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        request.write_bytes(broken[: rng.randint(0, len(broken))])
        code, _, err = run(capsys, "plan", request, "--silo", silo.folder)
        assert code != 70, err
        assert code == 0 or len(err.splitlines()) == 1, err
    for name in ("ledger.sqlite", "key.pem"):
        path = silo.folder / "state" / name
        kept = path.read_bytes()
        for _ in range(25):
            path.write_bytes(kept[: rng.randrange(len(kept) - 40)])
            code, _, err = run(capsys, "log", "--silo", silo.folder)
            assert code not in (0, 70) and len(err.splitlines()) == 1, err
        path.write_bytes(kept)
    assert run(capsys, "log", "--silo", silo.folder)[0] == 0
