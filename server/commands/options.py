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


def public_data_option(parser: argparse.ArgumentParser) -> None:
    """``--no-public-data``, for every command that begins a run."""
    parser.add_argument(
        "--no-public-data",
        action="store_true",
        help="refuse a scenario that touches public data: trained backbones, public images, pretrained generators",
    )
