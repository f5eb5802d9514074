"""A software bill of materials (CycloneDX, JSON) from the locks: ``python deploy/sbom.py client > client.cdx.json``.

Components are the locked distributions with all hashes that may be installed, so that whoever holds a file can look it
up. The bill is a function of the checkout alone, without time or serial number: anybody can make it again and compare.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {"server": ("server", "cuda"), "client": ("server", "client", "cuda")}


def component(entry: str) -> dict[str, Any]:
    """One locked distribution."""
    pinned = re.match(r"([a-z0-9-]+)==(\S+)(?:\s*;\s*([^\\]+))?", entry)
    if pinned is None:
        raise SystemExit(f"not a pinned requirement: {entry.splitlines()[0]}")
    name, version, marker = pinned.groups()
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"pkg:pypi/{name}@{version}",
                "hashes": [{"alg": "SHA-256", "content": found}],
            }
            for found in sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
        ],
    }
    if marker:
        made["properties"] = [{"name": "dpdd:marker", "value": marker.strip()}]
    return made


def bill(side: str) -> dict[str, Any]:
    """The bill of one side, `client` or `server`."""
    sys.path.insert(0, str(ROOT / "deploy"))
    from refresh_locks import blocks

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [(ROOT / "requirements" / f"{name}.lock").read_text() for name in LOCKS[side]]
    components = [component(entry) for text in texts for entry in blocks(text)]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            },
            "properties": [{"name": "dpdd:side", "value": side}],
        },
        "components": sorted(components, key=lambda found: found["bom-ref"]),
        "dependencies": [{"ref": own, "dependsOn": sorted(found["bom-ref"] for found in components)}],
    }


def main() -> int:
    """Print the bill of the side that is named."""
    if len(sys.argv) != 2 or sys.argv[1] not in LOCKS:
        raise SystemExit("usage: python deploy/sbom.py client|server")
    print(json.dumps(bill(sys.argv[1]), indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
