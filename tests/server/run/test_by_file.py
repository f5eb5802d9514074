"""Silos without a network: request files out, signed releases in, a finished dataset, and nobody listens anywhere."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.cli import main as client
from dpdd.client.silo import Silo
from dpdd.common.progress import Console
from dpdd.common.wire.release import open_signed, sign
from dpdd.common.wire.request import decode_request
from dpdd.scenarios.simulator.silos import set_up
from dpdd.server.cli import main as server
from dpdd.server.run.scenario import load_scenario
from dpdd.server.run.store import Store
from tests import staged
from tests.attacks.test_bad_silo import altered
from tests.scenarios.tiny_runs import tiny_scenario
from tests.server.transport.worlds import entries

staged_method = staged.staged_method


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("this needs no network")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("dpdd.server.transport.running.ExchangeServer", refuse)


class World:
    """A coordinator's folder, and simulated silos that never join."""

    def __init__(self, folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self._capsys = folder, capsys
        self.home, self.scenario, self.out = folder / "hub", folder / "tiny.toml", folder / "requests"
        self.run = self.home / "runs" / "tiny"
        self.scenario.write_text(text)
        self.silos = {
            silo.settings.name: silo
            for silo in set_up(load_scenario(str(self.scenario)), folder / "simulated", Console(quiet=True))
        }
        assert server(["init", str(self.home)]) == 0

    def enrol(self, *names: str) -> None:
        for name in names:
            assert server(["enrol", name, "--coordinator", str(self.home)]) == 0
        self._capsys.readouterr()

    def request(self, *options: object) -> list[Path]:
        """The request files that were written, the new ones."""
        before = set(self.out.glob("*")) if self.out.exists() else set()
        self.said(server, "request", self.scenario, "--out", self.out, "--coordinator", self.home, *options)
        return sorted(set(self.out.glob("*")) - before)

    def answer(self, silo: Silo, request: Path) -> Path:
        path = self.folder / f"{silo.settings.name}.{request.stem}.release"
        self.said(client, "answer", request, "--silo", silo.folder, "--out", path)
        return path

    def take(self, *arguments: object) -> str:
        return self.said(server, "import", self.run, *arguments, "--coordinator", self.home)

    def said(self, command: object, *arguments: object, code: int = 0) -> str:
        left = command([str(argument) for argument in arguments])  # type: ignore[operator]
        out, err = self._capsys.readouterr()
        assert left == code, err
        return str(out) if code == 0 else str(err)

    def failed(self, command: object, *arguments: object, code: int) -> str:
        sentence = self.said(command, *arguments, code=code)
        assert len(sentence.splitlines()) == 1
        return sentence


def key_of(silo: Silo) -> list[object]:
    return ["--silo", silo.settings.name, "--key", silo.public_key.hex()]


def test_one_stage_from_request_to_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = World(tmp_path, tiny_scenario(2, steps=2), capsys)
    here.enrol("north", "east")
    (request,) = here.request()
    assert request.name == "tiny.stage-0.request"
    assert here.request() == []  # the same bytes again
    here.said(client, "plan", request, "--silo", here.silos["north"].folder, "--quick")
    for silo in here.silos.values():
        assert "signed; ε = 10" in here.take(here.answer(silo, request), *key_of(silo))
    again = here.said(server, "request", here.scenario, "--out", here.out, "--coordinator", here.home)
    assert "all silos have answered" in again
    here.said(server, "resume", here.run, "--offline", "--coordinator", here.home, "--quiet")
    card = json.loads((here.run / "card.json").read_text())
    assert [row["silo"] for row in card["silos"]] == ["east", "north"] and not card["silos_without_release"]
    here.said(server, "verify", here.run)
    assert all(entries(silo) == ["open", "reserve", "commit"] for silo in here.silos.values())
    assert here.said(server, "status", "--coordinator", here.home).count("by file") == 2


@pytest.mark.usefixtures("staged_method")
def test_two_stages_from_request_to_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tiny_scenario(3).replace('"dp-merf"', '"staged"').replace("features = 16", "stages = 2")
    text = text.replace("steps = 10\nbatch = 10", "").replace(
        "epsilon = 10.0", "epsilon = 10.0\nepsilons = { east = 5.0 }"
    )
    here = World(tmp_path, text, capsys)
    for silo in here.silos.values():  # the method is known in this process alone
        with (silo.folder / "silo.toml").open("a") as file:
            file.write("\n[worker]\nisolation = false\n")
    here.enrol(*here.silos)
    files = {path.name: path for path in here.request()}
    assert set(files) == {"tiny.stage-0.east.request", "tiny.stage-0.north+south.request"}

    def request_for(name: str) -> Path:
        return next(path for path in files.values() if name in path.stem)

    east, north, south = (here.silos[name] for name in ("east", "north", "south"))
    others = here.answer(east, request_for("east"))
    here.take(others, *key_of(east))
    here.take(here.answer(north, request_for("north")), *key_of(north))
    assert here.request() == []  # south has not answered
    early = here.failed(server, "resume", here.run, "--offline", "--coordinator", here.home, "--quiet", code=1)
    assert "no silo answered stage 1" in early
    store = Store(here.run / "store")
    assert {decode_request(data).stage for data in store.requests()} == {0}  # its input may still change
    store.close()
    files = {path.name: path for path in here.request("--stage", 1)}  # go on without it
    assert set(files) == {"tiny.stage-1.east.request", "tiny.stage-1.north.request"}
    inputs = {path.read_bytes() for path in files.values()}
    here.take(here.answer(east, request_for("east")), here.answer(north, request_for("north")))
    files = {path.name: path for path in here.out.glob("*stage-0*")}
    here.take(here.answer(south, request_for("south")), *key_of(south))  # late: it is asked what the others were
    files = {path.name: path for path in here.request()}
    assert set(files) == {"tiny.stage-1.north+south.request"} and request_for("south").read_bytes() in inputs
    here.take(here.answer(south, request_for("south")))
    here.said(server, "resume", here.run, "--offline", "--coordinator", here.home, "--quiet")
    card = json.loads((here.run / "card.json").read_text())
    assert [(row["silo"], row["releases"]) for row in card["silos"]] == [("east", 2), ("north", 2), ("south", 2)]
    here.said(server, "verify", here.run)


def test_files_that_do_not_belong_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tiny_scenario(2, steps=2).replace("epsilon = 10.0", "epsilon = 10.0\nepsilons = { east = 5.0 }")
    here = World(tmp_path, text, capsys)
    north, east = here.silos["north"], here.silos["east"]
    for_east, for_north = here.request()  # nobody is enrolled: the scenario names east
    release = here.answer(north, for_north if "east" in for_east.name else for_east)

    def refused(*arguments: object, code: int = 9) -> str:
        sentence = here.failed(server, "import", here.run, *arguments, "--coordinator", here.home, code=code)
        assert not list((here.run / "store").glob("?" * 64))
        return sentence

    assert "has not joined" in refused(release)
    assert "another key" in refused(release, "--silo", "north", "--key", east.public_key.hex())
    assert "go together" in refused(release, "--silo", "north", code=3)
    assert "64 hexadecimal digits" in refused(release, "--silo", "north", "--key", "abc", code=3)
    assert "64 hexadecimal digits" in refused(release, "--silo", "no/rth", "--key", north.public_key.hex(), code=3)
    data = bytearray(release.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "altered").write_bytes(data)
    refused(tmp_path / "altered", *key_of(north))
    (tmp_path / "nonsense").write_bytes(b"nonsense")
    refused(tmp_path / "nonsense", code=5)
    refused(tmp_path / "absent", code=3)
    taken = here.answer(east, for_east)
    twin = World(tmp_path / "twin", text, capsys).silos["north"]  # the same name and another key; it has not spent yet
    assert "that was for others" in refused(here.answer(twin, for_east), *key_of(twin))
    assert server(["revoke", "north", "--coordinator", str(here.home)]) != 0  # a refused key was not recorded
    capsys.readouterr()
    other = World(tmp_path / "other", tiny_scenario(2, steps=3).replace('"tiny"', '"tiny2"'), capsys)
    other.run = here.home / "runs" / "tiny"
    (foreign,) = other.request()
    assert "none of this run's" in refused(other.answer(other.silos["north"], foreign), *key_of(other.silos["north"]))
    here.take(taken, *key_of(east))
    assert server(["revoke", "east", "--coordinator", str(here.home)]) == 0
    capsys.readouterr()
    again = ("import", here.run, taken, *key_of(east), "--coordinator", here.home)
    assert "revoked" in here.failed(server, *again, code=3)


def test_a_gigabyte_is_refused_unread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer in which an array of the right name is a thousand times as long as asked for, and signed."""
    here = World(tmp_path, tiny_scenario(1, steps=2), capsys)
    (silo,), (request,) = here.silos.values(), here.request()
    large = tmp_path / "large.release"
    release = open_signed(here.answer(silo, request).read_bytes())
    arrays = {name: np.zeros((1000, *array.shape[1:]), array.dtype) for name, array in release.arrays.items()}
    large.write_bytes(sign(altered(release, arrays=arrays), silo._key))
    zeros = tmp_path / "zeros.release"
    with zeros.open("wb") as file:
        file.truncate(1 << 30)
    read = Path.read_bytes

    def unread(path: Path) -> bytes:
        assert path not in (large, zeros), "read before its size was compared"
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", unread)
    arguments = (*key_of(silo), "--coordinator", here.home)
    assert "bytes, not" in here.failed(server, "import", here.run, large, *arguments, code=5)
    here.failed(server, "import", here.run, zeros, *arguments, code=5)


def test_a_second_release_in_a_file_is_refused_and_remembered_as_a_fork(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole silo was put back as it was before, anchor included, and asked once more."""
    here = World(tmp_path, tiny_scenario(1, steps=2), capsys)
    (silo,), (request,) = here.silos.values(), here.request()
    shutil.copytree(silo.folder, tmp_path / "before")
    first = here.answer(silo, request)
    kept = first.rename(tmp_path / "first.release")
    shutil.rmtree(silo.folder)
    shutil.copytree(tmp_path / "before", silo.folder)
    second = here.answer(Silo(silo.folder), request)
    assert second.read_bytes() != kept.read_bytes()
    here.take(kept, *key_of(silo))
    here.failed(server, "import", here.run, second, "--coordinator", here.home, code=9)
    said = here.said(server, "status", "--coordinator", here.home)
    assert f"a fork: silo {silo.settings.name} made two different releases for request" in said
