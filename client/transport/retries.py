"""When a node tries again, and after which errors it does not."""

from __future__ import annotations

import secrets

import grpc

LONGEST_WAIT = 60.0
NOT_ACCEPTED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
PERMANENT = (*NOT_ACCEPTED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNKNOWN,
)
"""Errors of the network, or of a full disk: retried without end."""


def jittered(wait: float) -> float:
    """Between half and one and a half of `wait`, so that many silos do not come back at the same moment."""
    return wait * (0.5 + secrets.randbelow(1000) / 1000)


def again(pause: float) -> str:
    """When the next try is. The longest waits are all alike in words, so that they are said once and not for days."""
    if pause >= LONGEST_WAIT / 2:
        return "trying again every minute or so"
    return f"trying again in {pause:.{0 if pause >= 1 else 1}f} s"
