"""The locks and the bills of materials made from them: pinned, hashed, complete, and from nowhere in particular."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
ENTRY = re.compile(r"[a-z0-9-]+==[0-9][0-9A-Za-z.]*(?: ; [^\\]+)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+")


def faults(text: str) -> list[str]:
    """What in a lock is neither a comment, a reference to another lock, nor a pinned requirement with its hashes."""
    lines = "\n".join(line for line in text.splitlines() if not re.fullmatch(r"#.*|-r [a-z]+\.lock", line))
    return [entry for entry in re.split(r"(?m)^(?=\S)", lines) if entry.strip() and not ENTRY.fullmatch(entry.strip())]


def locked(*names: str) -> list[Requirement]:
    texts = [(ROOT / "requirements" / f"{name}.lock").read_text() for name in names]
    return [Requirement(line.rstrip("\\ ")) for text in texts for line in text.splitlines() if re.match(r"[a-z]", line)]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_has_versions_and_hashes_and_no_address(path: Path) -> None:
    text = path.read_text()
    assert faults(text) == []
    assert not re.search(r"(?m)(://|^--|^-[^r]|/opt/|/home/|/tmp/|\+cpu)", text)


@pytest.mark.parametrize(
    "line",
    [
        "numpy==2.4.6\n",
        "numpy>=2.4.6 \\\n    --hash=sha256:" + 64 * "0",
        "torch==2.13.0+cpu \\\n    --hash=sha256:" + 64 * "0",
        "--index-url https://example.org/simple",
        "numpy==2.4.6 \\\n    --hash=md5:" + 32 * "0",
    ],
)
def test_what_is_no_lock_is_seen(line: str) -> None:
    assert faults(line)


@pytest.mark.parametrize(("names", "extras"), [(("server", "cuda"), ()), (("server", "client", "cuda"), ("medical",))])
def test_locks_meet_what_the_project_declares(names: tuple[str, ...], extras: tuple[str, ...]) -> None:
    pinned: dict[str, list[Requirement]] = {}
    for found in locked(*names):
        pinned.setdefault(canonicalize_name(found.name), []).append(found)
    declared = [
        *PROJECT["dependencies"],
        *(line for extra in extras for line in PROJECT["optional-dependencies"][extra]),
    ]
    for wanted in map(Requirement, declared):
        versions = [next(iter(found.specifier)).version for found in pinned.get(canonicalize_name(wanted.name), [])]
        assert versions and all(wanted.specifier.contains(version) for version in versions), wanted


def test_only_a_silo_gets_what_only_a_silo_needs() -> None:
    client = (ROOT / "requirements" / "client.lock").read_text()
    assert "\n-r server.lock\n" in client and [found.name for found in locked("client")] == ["pydicom"]


@pytest.mark.parametrize("side", ["client", "server"])
def test_the_bill_of_materials_lists_what_is_locked(side: str) -> None:
    command = [sys.executable, str(ROOT / "deploy" / "sbom.py"), side]
    printed = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)]
    assert printed[0] == printed[1]
    bill = json.loads(printed[0])
    names = ("server", "cuda") if side == "server" else ("server", "client", "cuda")
    wanted = {f"pkg:pypi/{found.name}@{next(iter(found.specifier)).version}" for found in locked(*names)}
    assert {found["purl"] for found in bill["components"]} == wanted
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["version"] == PROJECT["version"]
    assert all(found["externalReferences"] for found in bill["components"])
    refs = [found["bom-ref"] for found in bill["components"]]
    assert len(set(refs)) == len(refs) and bill["dependencies"][0]["dependsOn"] == sorted(refs)
