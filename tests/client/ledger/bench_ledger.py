"""What a reservation, a commit and a look at the budget cost with ten entries and with ten thousand, side by side.

``python -m tests.client.ledger.bench_ledger``

Both ledgers are used in turns, so that whatever else the machine does meets both. Every operation opens the ledger, as
a silo does for every request. Each figure is a median; fsync is real, on the disk of the folder that is given.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.anchor import Anchor
from dpdd.client.ledger.ledger import Draft, Ledger
from dpdd.common.cli import table
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.privacy.events import Gaussian, PoissonGaussian, to_json
from dpdd.common.privacy.filters import Budget, Spending

FEW, MANY = 10, 10_000
EVENTS = {"gaussian": Gaussian(1e5), "renyi": PoissonGaussian(50.0, 1e-4, 10)}


def request_id(number: int) -> str:
    """A made-up one."""
    return f"{number:064x}"


def filled(path: Path, entries: int, composition: str, key: Ed25519PrivateKey) -> Ledger:
    """A ledger with so many entries: reservations and commits in turns."""
    budget = Budget(8.0, 1e-5, composition)  # type: ignore[arg-type]
    Ledger.create(path, "north", budget, key)
    ledger = opened(path, composition, key)
    ledger.rebuild(_drafts(entries - 1, composition))
    return ledger


def opened(path: Path, composition: str, key: Ed25519PrivateKey) -> Ledger:
    """As a silo opens it."""
    budget = Budget(8.0, 1e-5, composition)  # type: ignore[arg-type]
    return Ledger(path, "north", budget, key, anchor=Anchor(path.with_suffix(".anchor"), key))


def reserve(ledger: Ledger, number: int, composition: str) -> None:
    """One more request."""
    spending = Spending(EVENTS[composition], 1e-18)
    ledger.reserve(request_id(number), "dp-merf", spending, Guarantee(0.1, 1e-5, "test"), {"run": "r"})


def _drafts(count: int, composition: str) -> list[Draft]:
    reserved = {
        "method": "dp-merf",
        "event": to_json(EVENTS[composition]),
        "distance": 1e-18,
        "epsilon": 0.1,
        "delta": 1e-5,
        "accountant": "test",
        "filter": composition,
        "stages": 1,
        "run": "r",
    }
    drafts = []
    for number in range(count):
        request = request_id(10**6 + number // 2)
        drafts.append(
            Draft("commit", request, {"release_sha256": request}) if number % 2 else Draft("reserve", request, reserved)
        )
    return drafts


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=25, help="how often everything is done")
    parser.add_argument("--folder", type=Path, help="where the ledgers are made (default: a temporary folder)")
    options = parser.parse_args()
    key, rows = Ed25519PrivateKey.generate(), []
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        for composition in EVENTS:
            paths = {size: Path(scratch, f"{composition}-{size}.sqlite") for size in (FEW, MANY)}
            for size, path in paths.items():
                filled(path, size, composition, key).close()
            seconds = _measure(paths, composition, key, options.times)
            for name in ("reserve", "commit", "status"):
                few, many = (1e3 * statistics.median(seconds[name, size]) for size in (FEW, MANY))
                rows.append([composition, name, f"{few:.2f} ms", f"{many:.2f} ms", f"{many / few:.2f}"])
    print(table(["filter", "operation", f"{FEW} entries", f"{MANY:,} entries", "ratio"], rows))


def _measure(
    paths: dict[int, Path], composition: str, key: Ed25519PrivateKey, times: int
) -> dict[tuple[str, int], list[float]]:
    seconds: dict[tuple[str, int], list[float]] = {}
    operations: dict[str, Callable[[Ledger, int], object]] = {
        "reserve": lambda ledger, number: reserve(ledger, number, composition),
        "commit": lambda ledger, number: ledger.commit(request_id(number), request_id(number)),
        "status": lambda ledger, _: ledger.status(),
    }
    for number in range(times + 1):
        for size, path in paths.items():
            for name, operate in operations.items():
                started = time.perf_counter()
                ledger = opened(path, composition, key)
                operate(ledger, number)
                ledger.close()
                if number:  # the first time warms caches
                    seconds.setdefault((name, size), []).append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    main()
