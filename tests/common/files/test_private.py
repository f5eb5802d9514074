"""State is its owner's alone, and only what is published is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpdd.common.cli import Commands
from dpdd.common.errors import IntegrityError
from dpdd.common.files.private import folder_warning, owners_only


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("private", "publishes", "mode"), [(True, False, 0o600), (True, True, 0o644), (False, False, 0o644)]
)
def test_commands_make_private_files_unless_they_publish(
    tmp_path: Path, private: bool, publishes: bool, mode: int
) -> None:
    commands = Commands("test", "Test.", private=private)
    command = commands.add("make", lambda options: (tmp_path / "made").write_text("x"), "make a file")
    command.set_defaults(publishes=publishes)
    assert commands.main(["make"]) == 0
    assert (tmp_path / "made").stat().st_mode & 0o777 == mode
    assert os.umask(0o022) == 0o022, "the umask is put back"


def test_what_is_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    owners_only(path, "the key")
    for mode in (0o604, 0o640, 0o620, 0o601):
        path.chmod(mode)
        with pytest.raises(IntegrityError, match="the key is open to others"):
            owners_only(path, "the key")
    tmp_path.chmod(0o700)
    assert folder_warning(tmp_path) == []
    tmp_path.chmod(0o750)
    assert "chmod 700" in folder_warning(tmp_path)[0]
