"""The silos that a coordinator knows: a name and the public key that verifies its releases.

>>> roster = Roster({"north": bytes(32)})
>>> roster.key_of("north") == bytes(32)
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpdd.common.errors import ConfigError, IntegrityError


@dataclass(frozen=True)
class Roster:
    """Names and keys."""

    keys: Mapping[str, bytes]

    def key_of(self, silo: str) -> bytes:
        """The key of `silo`; IntegrityError for a stranger."""
        if silo not in self.keys:
            raise IntegrityError(f"silo {silo!r} is not enrolled with this coordinator")
        return self.keys[silo]

    def save(self, path: Path) -> None:
        """Write the roster as JSON."""
        path.write_text(json.dumps({name: key.hex() for name, key in self.keys.items()}, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Roster:
        """The roster at `path`."""
        try:
            return cls({name: bytes.fromhex(key) for name, key in json.loads(path.read_text()).items()})
        except FileNotFoundError:
            raise ConfigError(f"{path}: there is no roster of silos") from None
        except (ValueError, AttributeError, TypeError):
            raise ConfigError(f"{path}: this is not a roster of silos (a JSON object of names and hex keys)") from None
