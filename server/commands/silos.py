"""`init`, `enrol` and `revoke`: the coordinator's folder, and who may send releases to it."""

from __future__ import annotations

import argparse
import sys

from dpdd.common.errors import ConfigError
from dpdd.common.wire.exchange import JOIN_PORT
from dpdd.server.commands.options import open_coordinator


def init(options: argparse.Namespace) -> None:
    """Make the authority, the keys and the registry, or say that they are there."""
    from dpdd.server.transport.coordinator import Coordinator

    had = (options.folder / "authority.pem").exists()
    coordinator = Coordinator.initialise(options.folder, encrypt_keys=options.encrypt_key)
    print(f"coordinator in {options.folder}: {'authority and keys are there' if had else 'made an authority and keys'}")
    print(f"authority {coordinator.authority.fingerprint.hex()}")
    print(f"next: `dpdd-server enrol NAME --coordinator {options.folder}` for each silo")


def enrol(options: argparse.Namespace) -> None:
    """Print a one-time join token for a silo."""
    from datetime import timedelta

    if not 0 < options.hours <= 24 * 365:
        raise ConfigError(f"a token is good for more than 0 and at most {24 * 365} hours, not {options.hours:g}")
    token = open_coordinator(options).enrol(options.name, timedelta(hours=options.hours))
    print(token)
    print(
        f"give this token to the operator of {options.name}, and to nobody else: it is good once, within "
        f"{options.hours:g} h, for `dpdd-client join HOST:{JOIN_PORT} TOKEN`",
        file=sys.stderr,
    )


def revoke(options: argparse.Namespace) -> None:
    """Shut a silo out."""
    open_coordinator(options).registry.revoke(options.name)
    print(f"silo {options.name} is revoked: its certificate is worth nothing from now on; its releases stay")
