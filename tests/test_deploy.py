"""`deploy/`: what can be checked of units and containers without running them."""

from __future__ import annotations

import configparser
import json
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dpdd.client.cli import main as client
from dpdd.common.wire.exchange import JOIN_PORT, PORT
from dpdd.server.cli import main as server

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
UNITS = ("dpdd-client@.service", "dpdd-server.service")
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"dpdd-client": client, "dpdd-server": server}


def is_command_line(program: str, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the command takes these words: without its folder it then fails in a sentence, not by usage."""
    try:
        return COMMANDS[program](arguments) not in (0, 2, 70)
    except SystemExit:
        return False


def unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((DEPLOY / name).read_text())
    return parser["Service"]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_may_do_little(name: str) -> None:
    service = unit(name)
    wanted = {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "PrivateTmp": "yes",
        "UMask": "0077",
        "User": "dpdd",
        "CapabilityBoundingSet": "",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    }
    assert {key: service[key] for key in wanted} == wanted


def test_a_silo_writes_its_state_and_its_anchor_and_a_coordinator_its_folder() -> None:
    assert unit(UNITS[0])["ReadWritePaths"] == "/var/lib/dpdd/%i/state -/var/lib/dpdd/.local/state/dpdd"
    assert unit(UNITS[1])["ReadWritePaths"] == "/var/lib/dpdd/hub"


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_runs_a_command_line_that_there_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = shlex.split(unit(name)["ExecStart"])
    given = [word.replace("/var/lib/dpdd", str(tmp_path)).replace("${DPDD_BIND}", "127.0.0.1") for word in arguments]
    assert is_command_line(Path(program).name, given, capsys)


def test_the_server_listens_on_loopback_until_told_otherwise() -> None:
    service = unit("dpdd-server.service")
    assert service["Environment"] == "DPDD_BIND=127.0.0.1" and "--bind ${DPDD_BIND}" in service["ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_understands_every_line(name: str, tmp_path: Path) -> None:
    program = unit(name)["ExecStart"].split()[0]
    path = tmp_path / name.replace("@", "@north")
    path.write_text((DEPLOY / name).read_text().replace(program, "/bin/true"))  # it looks whether the program is there
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60)
    own = [line for line in done.stderr.splitlines() if path.stem in line]  # others may have units with problems
    assert done.returncode == 0 and own == []


def instructions(stage: str | None = None) -> list[tuple[str, str]]:
    """The Containerfile's instructions, of one stage or of all."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    parsed, current = [], ""
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            current = rest.split()[-1]
        if stage in (None, current):
            parsed.append((word, rest.strip()))
    return parsed


def test_the_containerfile_has_known_instructions_and_copies_what_there_is() -> None:
    known = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in instructions()} <= known
    copied = [word for name, rest in instructions("build") if name == "COPY" for word in rest.split()[:-1]]
    assert copied and all((ROOT / source).exists() for source in copied)
    let_in = [line[1:] for line in (DEPLOY / "Containerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    assert sorted(let_in) == sorted(copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {path.split("/")[0] for path in project["tool"]["setuptools"]["package-dir"].values()}
    assert folders | {"pyproject.toml", project["project"]["readme"], "LICENSE"} == set(copied)


def test_the_containers_torch_is_the_projects() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = {entry for entry in declared if entry.startswith("torch")}
    installed = next(rest for name, rest in instructions("build") if name == "RUN" and "TORCH_INDEX" in rest)
    assert wanted == {word for word in shlex.split(installed) if word.startswith("torch")}


@pytest.mark.parametrize("stage", ["client", "server"])
def test_a_container_runs_a_command_line_that_there_is_as_nobody_special(
    stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, base = dict(instructions(stage)), instructions("base")
    assert own["FROM"] == f"base AS {stage}" and ("USER", "10001") in base and "USER" not in own
    (program,) = json.loads(own["ENTRYPOINT"])
    given = [word.replace("/data", str(tmp_path / "data")) for word in json.loads(own["CMD"])]
    assert own.get("EXPOSE") == (f"{PORT} {JOIN_PORT}" if stage == "server" else None)
    assert is_command_line(program, ["127.0.0.1" if word == "0.0.0.0" else word for word in given], capsys)
