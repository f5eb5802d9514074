"""What the sub-commands take from their options: the silo, and the request that a file or an id names."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dpdd.common.errors import ConfigError

if TYPE_CHECKING:
    from dpdd.client.silo import Silo
    from dpdd.client.worker.worker import Worker
    from dpdd.common.wire.request import ReleaseRequest


def open_silo(options: argparse.Namespace, worker: Worker | None = None) -> Silo:
    """The silo in the folder that `--silo` names; `worker` reads its records where silo.toml says so."""
    from dpdd.client.silo import Silo

    return Silo(options.silo, worker)


def read_request(path: Path) -> bytes:
    """The bytes of a request file; ConfigError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: the request cannot be read ({error.strerror})") from None


def waiting_request(silo: Silo, prefix: str) -> ReleaseRequest:
    """The one waiting request whose id starts with `prefix`; ConfigError when there is none, or more."""
    matches = [request for request in silo.waiting() if request.id.startswith(prefix)]
    if len(matches) != 1:
        problem = "no waiting request" if not matches else "more than one waiting request"
        raise ConfigError(f"{problem} has an id that starts with {prefix!r}; `dpdd-client requests` lists them")
    return matches[0]


def named_request(silo: Silo, name: str) -> ReleaseRequest:
    """The request in the file `name`; where there is no such file, the waiting one whose id starts with it."""
    from dpdd.common.wire.request import decode_request

    if name and set(name) <= set("0123456789abcdef") and not Path(name).exists():
        return waiting_request(silo, name)
    return decode_request(read_request(Path(name)))
