"""Silos without a network: their requests are written to files, and their signed releases are read from files.

A later stage's request is written once the earlier ones are answered. Its input is in the run's store from then on, as
it is when silos are asked over a network; so both kinds of silo can take part in one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpdd.common.errors import ConfigError, DpddError, IntegrityError
from dpdd.common.files.atomic import write_atomically
from dpdd.common.methods.registry import query
from dpdd.common.methods.verification import check_size
from dpdd.common.wire.parsing import shown
from dpdd.common.wire.release import Release, stated
from dpdd.common.wire.request import decode_request
from dpdd.server.run.pipeline import Run, Stage
from dpdd.server.run.requests import RequestGroup, make_request, request_groups
from dpdd.server.run.roster import Roster
from dpdd.server.run.rounds import closed_by_hand
from dpdd.server.run.scenario import Scenario
from dpdd.server.run.store import Store

MOST_NAMED = 3
"""So many silos are named in a file's name."""


@dataclass(frozen=True, eq=False)
class OpenStage:
    """A stage that is being asked: its requests, and who of their silos has not answered."""

    number: int
    groups: Sequence[RequestGroup]
    missing: Sequence[str]


def open_stage(run: Run, store: Store, silos: Iterable[str], wanted: int | None = None) -> OpenStage | None:
    """The first stage that one of `silos` has not answered (or the one that is `wanted`), kept in the store.

    None when all stages are answered. A later stage is asked of those who answered the first.
    """
    scenario = run.scenario
    if scenario.continual:
        raise ConfigError("a continual scenario asks other silos for each task, which is not possible by file")
    asked = request_groups(scenario, silos)
    if not asked:  # whoever they will be, these are the requests
        asked = [
            RequestGroup(make_request(scenario), frozenset()),
            *request_groups(scenario, scenario.privacy.epsilons),
        ]
    stages: list[Stage] = []
    for number in range(run.stages(asked)):
        now = run.next_stage(stages, asked, store)
        releases = run.stored(now, store)
        missing = sorted({silo for group in now for silo in group.silos} - {release.silo for release in releases})
        if number == wanted or (wanted is None and (missing or not releases)):
            for group in now:
                store.add_request(group.request.id, group.request.encode())
            return OpenStage(number, now, missing)
        if not releases:
            raise DpddError(f"nobody has answered stage {number} yet, so a later one cannot be asked")
        used = closed_by_hand(store, now, releases, query(scenario.method.name))
        stages.append(run.aggregated(now, used))
    if wanted is not None:
        raise ConfigError(f"there is no stage {wanted}: {scenario.method.name} has {len(stages)} with these settings")
    return None


def write_requests(stage: OpenStage, folder: Path) -> dict[Path, RequestGroup]:
    """One request file for every ε, named after those it is for where they are not all."""
    written: dict[Path, RequestGroup] = {}
    for group in stage.groups:
        whom = "" if len(stage.groups) == 1 else f".{_names(sorted(group.silos)) or 'others'}"
        path = folder / f"{group.request.run}.stage-{stage.number}{whom}.request"
        data = group.request.encode()
        try:
            if not path.exists():
                write_atomically(path, data)
            elif path.read_bytes() != data:
                raise ConfigError(f"{path}: there is another request of that name; choose another --out")
        except OSError as error:
            raise DpddError(f"{path}: the request cannot be written ({error.strerror})") from None
        written[path] = group
    return written


def take_release(path: Path, scenario: Scenario, store: Store, roster: Roster) -> Release:
    """Verify the signed release in a file by its silo's key, and keep it; IntegrityError where it does not belong.

    Nothing but what it states is read before it is known to have the size of an answer.
    """
    try:
        size, release = path.stat().st_size, stated(path)
    except OSError as error:
        raise ConfigError(f"{path}: the release cannot be read ({error.strerror})") from None
    if release.silo not in roster.keys:
        raise IntegrityError(
            f"{path}: silo {shown(release.silo)} has not joined, so its key is not known: give it as "
            f"--silo {release.silo} --key HEX (`dpdd-client init` shows it to the silo's operator)"
        )
    asked = store.request(release.request_id)
    if asked is None:
        raise IntegrityError(f"{path}: answers request {release.request_id[:12]}, which is none of this run's")
    if decode_request(asked).epsilon != scenario.privacy.epsilon_of(release.silo):
        raise IntegrityError(f"{path}: silo {release.silo} answered a request that was for others")
    check_size(size, store.expected(release.request_id))
    kept = store.add(path.read_bytes(), release.request_id, roster)
    store.note(release.request_id, release.silo, "released")
    return kept


def _names(silos: Sequence[str]) -> str:
    more = len(silos) - MOST_NAMED
    return "+".join(silos[:MOST_NAMED]) + (f"+{more}-more" if more > 0 else "")
