"""`init`, `enrol`, `revoke`, `renew`, `rotate-request-key`: the coordinator's folder and keys, and who may send."""

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


def renew(options: argparse.Namespace) -> None:
    """Renew the server's certificate; say when the others end."""
    coordinator = open_coordinator(options)
    ends = coordinator.renew_server_certificate().not_valid_after_utc.date()
    print(
        f"the server has a new certificate, which ends on {ends}: a server that is up shows it to whoever connects now"
    )
    print(f"the authority ends on {coordinator.authority.certificate.not_valid_after_utc.date()}; it cannot be renewed")
    for line in coordinator.warnings():
        print(f"note: {line}")


def rotate_request_key(options: argparse.Namespace) -> None:
    """Sign requests with a new key, which the old one endorses."""
    coordinator = open_coordinator(options)
    if options.compromised:
        coordinator.replace_request_key()
        print("requests are signed with a new key that nothing endorses: silos refuse them until they join anew")
        print(
            "each silo's operator removes [coordinator] from silo.toml, and joins with a new token of "
            "`dpdd-server enrol NAME`"
        )
        return
    rotation = coordinator.rotate_request_key()
    print(f"requests are signed with a new key, {rotation.new.hex()[:16]}…, rotation {rotation.number}")
    print("silos are told when they connect, or with the next request, and take no request of the old key after that")
