"""`join`, `renew` and `run`: becoming a silo of a coordinator, staying one, and answering its requests."""

from __future__ import annotations

import argparse
import sys

from dpdd.client.commands.options import open_silo
from dpdd.common.errors import ConfigError, DpddError, IntegrityError


def join(options: argparse.Namespace) -> None:
    """Join a coordinator with the token that it gave, and pin its authority in `silo.toml`."""
    from dpdd.client.transport.join import join as join_coordinator
    from dpdd.common.wire.exchange import Token

    if (options.token is None) != options.loopback_demo:
        raise ConfigError("give the join token that the coordinator gave you (--loopback-demo works without one)")
    text = sys.stdin.readline() if options.token == "-" else options.token
    silo = open_silo(options)
    pinned = join_coordinator(silo, options.address, None if text is None else Token.parse(text))
    print(f"silo {silo.settings.name} joined the coordinator at {pinned.address}")
    print(f"authority {pinned.authority_sha256} is pinned in {silo.folder / 'silo.toml'}")
    print(f"next: `dpdd-client run --silo {silo.folder}` answers its requests")


def renew(options: argparse.Namespace) -> None:
    """Get a new certificate for a new key, over the connection that the old one opens."""
    import grpc

    from dpdd.client.transport.channel import Files, explain, open_channel
    from dpdd.client.transport.node import pinned_coordinator
    from dpdd.client.transport.renewal import renew as renew_certificate
    from dpdd.client.transport.retries import NOT_ACCEPTED

    silo = open_silo(options)
    pinned = pinned_coordinator(silo)
    with open_channel(silo.folder, pinned, options.address or pinned.address) as channel:
        try:
            ends = renew_certificate(Files(silo.folder), silo.settings.name, channel)
        except grpc.RpcError as error:
            kind = IntegrityError if error.code() in NOT_ACCEPTED else DpddError
            raise kind(f"the certificate was not renewed, and the old one stays: {explain(error)}") from None
    print(f"silo {silo.settings.name} has a new certificate, which ends on {ends.date()}")
    print("the next connection shows it, and the old one is worth nothing then; a running node connects anew by itself")


def run(options: argparse.Namespace) -> None:
    """Answer the pinned coordinator's requests until stopped."""
    import logging
    import signal

    from dpdd.client.durable import only_one
    from dpdd.client.worker.worker import Worker

    silo = open_silo(options)
    with only_one(silo.node_lock, "runs `dpdd-client run` on this silo"), Worker() as worker:
        if silo.settings.worker.isolation:
            worker.start()  # now, so that the first request need not wait for it
        from dpdd.client.transport.node import Node
        from dpdd.client.transport.node_log import keep_log
        from dpdd.common.progress import Console

        keep_log(silo.node_log)
        console = Console(options.quiet)
        node = Node(options.silo, console, address=options.address, worker=worker)
        console.say(f"what happens is kept in {silo.node_log}")
        signal.signal(signal.SIGTERM, lambda *_: node.stop())
        try:
            node.run()
        except DpddError as error:
            logging.getLogger("dpdd.node").info("the node ends: %s", error, exc_info=True)  # stderr gets it once
            raise
        finally:
            node.stop()
