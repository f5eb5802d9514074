"""Kill a release with SIGKILL at random instants, many times, and check what is left. Run by `test_crash.py`.

Forks from one warmed-up process, so that a trial costs milliseconds and not the import of torch. Some of the kills come
from outside at a random time, most strike at a random moment inside a chosen step, so that every step is hit.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpdd.client.silo import Silo
from dpdd.common.wire.answer import SignedReleaseBytes
from dpdd.common.wire.release import open_signed
from dpdd.common.wire.request import ReleaseRequest
from tests import staged
from tests.client.silos import make_request, make_silo

STEPS = ("reserving", "reading", "summing statistics", "adding noise", "writing", "committing")


def main(folder: Path, kills: int, seed: int) -> None:
    """Do `kills` kills, check after each, and print what happened as JSON."""
    chance = random.Random(seed)
    struck: dict[str, int] = {}
    usual = measure(folder / "warm-up")
    done = silo_number = 0
    while done < kills:
        silo_number += 1
        home = folder / f"silo-{silo_number}"
        request = start(home, silo_number)
        for _ in range(chance.randint(1, 4)):
            if done == kills:
                break
            before = outbox_bytes(home, request.id)
            step = struck_step(home, request.encode(), usual, chance)
            struck[step] = struck.get(step, 0) + 1
            done += 1
            check_remains(home, request, before)
        finish(home, request)
    print(json.dumps({"kills": done, "silos": silo_number, "struck": struck}))


def start(home: Path, number: int) -> ReleaseRequest:
    """A new silo, and what it is asked: every other one has answered a first stage, and is asked for the second."""
    make_silo(home, seed=number)
    if number % 2:
        return make_request(run=f"run-{number}")
    allowed = (home / "silo.toml").read_text().replace('methods = ["dp-merf"]', 'methods = ["dp-merf", "staged"]')
    (home / "silo.toml").write_text(allowed)
    first = make_request(run=f"run-{number}", method="staged", settings={})
    assert isinstance(Silo(home).answer(first.encode()), SignedReleaseBytes)
    return replace(first, stage=1, stage_input={"mean": np.zeros(staged.WIDTH, np.float32)})


def measure(home: Path) -> float:
    """How long an undisturbed release takes, in a forked child as in the trials."""
    make_silo(home)
    started = time.monotonic()
    if (child := os.fork()) == 0:
        Silo(home).answer(make_request(run="warm-up").encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return time.monotonic() - started


def struck_step(home: Path, request: bytes, usual: float, chance: random.Random) -> str:
    """Start a release in a child and kill it; the step it was in."""
    reader, writer = os.pipe()
    inside = chance.choice(STEPS) if chance.random() < 0.7 else None
    delay = chance.random() ** 3 * usual / 8 if inside else chance.random() * usual * 1.1
    if (child := os.fork()) == 0:
        os.close(reader)

        def progress(what: str, _done: int, _of: int) -> None:
            os.write(writer, f"{what}\n".encode())
            if what == inside:
                threading.Thread(target=lambda: (time.sleep(delay), os.kill(os.getpid(), signal.SIGKILL))).start()

        try:
            Silo(home).answer(request, progress)
        finally:
            os._exit(0)
    os.close(writer)
    if inside is None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().split("\n")
    return lines[-2] if len(lines) > 1 else "starting"


def outbox_bytes(home: Path, request_id: str) -> bytes | None:
    """What the outbox holds, read past our own code."""
    path = home / "state" / "outbox" / f"{request_id}.release"
    return path.read_bytes() if path.exists() else None


def check_remains(home: Path, request: ReleaseRequest, before: bytes | None) -> None:
    """After a kill: the ledger is whole, a release has its entry, and a finished release is the same for ever."""
    silo = Silo(home)
    ledger = silo.ledger()
    entries = ledger.entries()
    ledger.close()
    mine = [entry for entry in entries if entry.request_id == request.id]
    kinds = [entry.kind for entry in mine]
    paid = "stage" if request.stage else "reserve"
    assert kinds in ([], [paid], [paid, "commit"]), kinds
    now = outbox_bytes(home, request.id)
    if now is not None:
        assert kinds, "a release without its ledger entry"
        assert open_signed(now, silo.public_key).ledger_entry == mine[0].hash
    if "commit" in kinds:
        assert now is not None, "committed, but there is no release"
    if before is not None:
        assert now == before, "two different releases for one request"


def finish(home: Path, request: ReleaseRequest) -> None:
    """The restart: one release, paid once, the same bytes on every further ask."""
    kept = outbox_bytes(home, request.id)
    silo = Silo(home)
    answers = [silo.answer(request.encode()) for _ in range(2)]
    assert all(isinstance(answer, SignedReleaseBytes) for answer in answers)
    assert answers[0] == answers[1]
    data = answers[0].data  # type: ignore[union-attr]
    assert kept is None or kept == data, "two different releases for one request"
    ledger = silo.ledger()
    kinds = [entry.kind for entry in ledger.entries()]
    status = ledger.status()
    assert kinds == ["open", "reserve", "commit", *["stage", "commit"] * request.stage], kinds
    assert ledger.committed(request.id) == hashlib.sha256(data).hexdigest()
    ledger.close()
    assert 0.0 < status.spent <= 1.0
    refused = silo.answer(make_request(run="one more").encode())
    assert not isinstance(refused, SignedReleaseBytes), "budget spent twice"
    if request.stage:
        other = replace(request, stage_input={"mean": np.ones(staged.WIDTH, np.float32)})
        assert not isinstance(silo.answer(other.encode()), SignedReleaseBytes), "a stage for two inputs"
    assert not list((home / "state" / "outbox").glob(".*")), "a partial file was left behind"


if __name__ == "__main__":
    import scipy.special  # noqa: F401  (imported here, so that the children need not)
    import torch

    import dpdd.client.mechanisms.dp_merf  # noqa: F401

    torch.set_num_threads(1)
    staged.register()
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
