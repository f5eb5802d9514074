"""Which coordinator a command is about."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpdd.server.transport.coordinator import Coordinator


def open_coordinator(options: argparse.Namespace) -> Coordinator:
    """The coordinator in the folder that was named."""
    from dpdd.server.transport.coordinator import Coordinator

    return Coordinator(options.coordinator)
