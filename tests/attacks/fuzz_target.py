"""What is fuzzed: a decoder, with what makes inputs for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Maker = Callable[[random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """A decoder, what makes its inputs, and what it may raise."""

    name: str
    make: Maker
    decode: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...]
