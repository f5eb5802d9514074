"""Which key must have signed a request: the one that `silo.toml` pins, or one that followed from it, step by step.

`silo.toml` is the operator's and stays as `join` wrote it. The rotations that this silo accepted lie beside its
certificate, and are verified from the pinned key on whenever they are read; a key that was replaced is trusted no more.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import grpc

from dpdd.client.config import CoordinatorSettings
from dpdd.client.transport.channel import Files
from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.files.atomic import write_atomically
from dpdd.common.wire.request_keys import Rotation, Trusted, decode_chain, encode_chain
from dpdd.v1 import exchange_pb2

log = logging.getLogger("dpdd.node")

TIMEOUT = 30.0


class RequestKeys:
    """The request key that a silo trusts now."""

    def __init__(self, files: Files, pinned: CoordinatorSettings) -> None:
        self._path, self._authority = files.request_keys, bytes.fromhex(pinned.authority_sha256)
        self._accepted: list[Rotation] = []
        self._trusted = Trusted(bytes.fromhex(pinned.request_key))
        try:
            if self._path.exists():
                self._accept(decode_chain(self._path.read_bytes()))
        except (WireError, IntegrityError) as error:
            raise IntegrityError(
                f"{self._path}: {error}; restore it from a backup, or join again after removing [coordinator] from "
                f"silo.toml"
            ) from None

    @property
    def key(self) -> bytes:
        """What verifies requests."""
        return self._trusted.key

    def refresh(self, channel: grpc.Channel) -> bool:
        """Ask which keys followed. Whether there were any: then the newest is trusted from now on, on disk too.

        IntegrityError, and nothing changed, when what the coordinator says does not follow from the trusted key.
        """
        query = exchange_pb2.RequestKeysQuery(known=self.key).SerializeToString()
        try:
            reply = channel.unary_unary("/dpdd.v1.Exchange/RequestKeys")(query, timeout=TIMEOUT)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # a coordinator from before there were rotations
                return False
            raise
        return self.follow(decode_chain(reply))

    def follow(self, rotations: Sequence[Rotation]) -> bool:
        """Trust the key to which these lead; whether it is another one."""
        if not rotations:
            return False
        trusted = self._trusted.follow(rotations, self._authority)
        write_atomically(self._path, encode_chain([*self._accepted, *rotations]))
        self._accept(rotations)
        log.info("requests are signed with %s… from now on, rotation %d", trusted.key.hex()[:16], trusted.number)
        return True

    def _accept(self, rotations: Sequence[Rotation]) -> None:
        self._trusted = self._trusted.follow(rotations, self._authority)
        self._accepted += rotations
