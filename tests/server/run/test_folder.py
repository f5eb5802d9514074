"""A run's folder: the coordinator's command that makes its dataset again."""

from __future__ import annotations

from pathlib import Path

from dpdd.server.run.folder import again


def test_the_command_names_the_coordinator_that_the_run_lies_in(tmp_path: Path) -> None:
    folder = tmp_path / "my hub" / "runs" / "autumn"
    folder.mkdir(parents=True)
    assert again(folder) is None  # no scenario: another command made it
    (folder / "scenario.toml").touch()
    assert again(folder) == f"dpdd-server resume '{folder}' --offline"
    (tmp_path / "my hub" / "authority.pem").touch()
    assert again(folder) == f"dpdd-server resume '{folder}' --offline --coordinator '{tmp_path / 'my hub'}'"
