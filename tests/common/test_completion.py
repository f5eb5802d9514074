"""Completion as bash does it: the script that a command prints is read by bash, which then completes words."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dpdd.client.cli import main as client
from dpdd.common.completion import SHELLS
from dpdd.scenarios.cli import main as simulator
from dpdd.server.cli import main as server
from dpdd.server.run.scenario import shipped

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "dpdd-client": client,
    "dpdd-server": server,
    "dpdd-sim": simulator,
}


@pytest.fixture(scope="session", params=COMMANDS)
def command(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def script(command: str, shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert COMMANDS[command](["completion", shell]) == 0
    return capsys.readouterr().out


def completed(code: str, words: str, folder: Path) -> set[str]:
    """What bash offers for the last word of a line, in a shell that has read nothing but the script."""
    command, *others = words.split(" ")
    run = """
        eval "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        "$(complete -p "$1" | sed 's/.* -F \\([^ ]*\\) .*/\\1/')" "$1" "${COMP_WORDS[COMP_CWORD]}" 2>/dev/null
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    words_given = [code, command, *others]
    bash = ["bash", "--norc", "--noprofile", "-c", run, "bash", *words_given]
    done = subprocess.run(bash, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_sub_commands_options_choices_and_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my-silo").mkdir()
    (tmp_path / "my.request").touch()
    code = script("dpdd-client", "bash", capsys)

    def offers(line: str) -> set[str]:
        return completed(code, line, tmp_path)

    assert offers("dpdd-client pl") == {"plan"}
    assert {"init", "preflight", "plan", "approve", "run", "completion"} <= offers("dpdd-client ")
    assert offers("dpdd-client run --a") == {"--address"}
    assert offers("dpdd-client log --accept-c") == {"--accept-clock"}
    assert offers("dpdd-client log --silo my") == {"my-silo"}
    assert offers("dpdd-client answer my") == {"my-silo", "my.request"}
    assert offers("dpdd-client completion ") >= set(SHELLS)


def test_bash_completes_shipped_scenarios_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("quick.toml", "quick.txt"):
        (tmp_path / name).touch()
    for command in ("dpdd-sim", "dpdd-server"):
        code = script(command, "bash", capsys)
        assert completed(code, f"{command} run quick", tmp_path) == {"quickstart", "quick.toml"}
        assert set(shipped()) <= completed(code, f"{command} run ", tmp_path)
    code = script("dpdd-sim", "bash", capsys)
    assert completed(code, "dpdd-sim run x --engine e", tmp_path) == {"exchange"}
    assert completed(code, "dpdd-sim account gaussian --eps", tmp_path) == {"--epsilon"}


def test_the_options_that_need_torch_are_completed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = script("dpdd-sim", "bash", capsys)
    assert completed(code, "dpdd-sim pretrain --weight", tmp_path) == {"--weight-decay"}
    assert completed(code, "dpdd-sim pretrain --schedule ", tmp_path) >= {"one-cycle", "cosine"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_that_it_can_read(
    shell: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = script(command, shell, capsys)
    assert command in code and "completion" in code
    if shutil.which(shell) is not None:  # zsh and fish are not everywhere
        (tmp_path / "script").write_text(code)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=60)


def test_a_shell_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        client(["completion", "cmd.exe"])
    assert "bash" in capsys.readouterr().err
