"""What the sub-commands take from their options: the silo, and the bytes of a request file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dpdd.common.errors import ConfigError

if TYPE_CHECKING:
    from dpdd.client.silo import Silo


def open_silo(options: argparse.Namespace) -> Silo:
    """The silo in the folder that `--silo` names."""
    from dpdd.client.silo import Silo

    return Silo(options.silo)


def read_request(path: Path) -> bytes:
    """The bytes of a request file; ConfigError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: the request cannot be read ({error.strerror})") from None
