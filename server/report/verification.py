"""Whether a finished run, or an exported one, is what its card says: recomputed from what silos signed, never believed.

Needed is nothing but the folder: the card, the dataset, the signed releases that the card names, and the requests that
they answer. From a request follows what its releases have to be (`dpdd.common.methods.verification`), from a release's
noise its ε. Nothing is written. An older export has no requests; then ε is recomputed of the noise that a release
states, and what was asked for is not, which is said.

What a folder cannot tell is whose the keys in its card are: a reader compares them with what the silos say.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpdd.common.errors import DataError, IntegrityError
from dpdd.common.methods.request_plan import published_epsilon
from dpdd.common.methods.verification import (
    Expected,
    check_guarantee,
    check_release,
    expected_of,
    recomputed_guarantee,
    second_opinion,
)
from dpdd.common.privacy import events
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.synthesis.product_files import COLUMNS, DATASET, MODEL, TEACHER, file_sha256
from dpdd.common.wire.release import Release, open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request
from dpdd.server.report.also import check_also
from dpdd.server.report.card import privacy_rows, together
from dpdd.server.report.pool import check_pool_file
from dpdd.server.report.rounds import check_rounds
from dpdd.server.run.store import read_request, read_stored

REQUESTS = "requests"
"""The folder of an export with the requests, as files that are named by their ids."""


@dataclass(frozen=True)
class Recomputed:
    """What was recomputed of a silo's row in a card, and what came out: no ε where nothing is promised."""

    silo: str
    what: str
    asked: str | None  # the request in words; None where it is not in the folder
    first: Guarantee
    second: Guarantee | None = None

    def __str__(self) -> str:
        if self.asked is None:
            source = "not compared with its request, which is not in this folder"
        else:
            source = f"noise, layout and guarantee are those of {self.asked}"
        found = [f"ε = {_figure(self.first)} at δ = {self.first.delta:g} by {self.first.accountant}"]
        if math.isinf(self.first.epsilon):
            found = ["nothing is promised"]
        if self.second is not None:
            found.append(f"{_figure(self.second)} by {self.second.accountant}")
        return f"{self.silo}, {self.what}: {source}; {', '.join(found)}"


@dataclass(frozen=True)
class CheckedRun:
    """A run whose card holds: the card, what was recomputed, and the requests by their ids, where there are any."""

    card: dict[str, Any]
    recomputed: Sequence[Recomputed]
    requests: Mapping[str, bytes]


@dataclass(frozen=True, eq=False)
class _Folder:
    """A run's folder, or an export, and what was read of it."""

    path: Path
    keys: Mapping[str, bytes]
    requests: dict[str, bytes] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)

    def releases(self, row: Mapping[str, Any]) -> list[Release]:
        """The releases that a row of the card names, with the signature of the row's silo."""
        silo = row["silo"]
        if silo not in self.keys:
            raise IntegrityError(f"the card has an evaluation by {silo}, which released nothing else")
        store = self.path / "store"
        releases = [open_signed(read_stored(store, digest), self.keys[silo]) for digest in row["release_sha256"]]
        if not releases or len({release.request_id for release in releases}) != len(releases):
            raise IntegrityError(f"the card's row for {silo} names no release, or one twice")
        for release in releases:
            if release.silo != silo:
                raise IntegrityError(f"the release in the card's row for {silo} is by silo {release.silo}")
        return releases

    def request(self, request_id: str) -> ReleaseRequest | None:
        """The request with this id, if it is here."""
        if request_id in self.requests:
            return decode_request(self.requests[request_id])
        path = self.path / REQUESTS / f"{request_id}.request"
        try:
            data = path.read_bytes() if path.exists() else read_request(self.path / "store", request_id)
        except OSError as error:
            raise IntegrityError(f"{path}: a request cannot be read ({error.strerror})") from None
        if data is None:
            return None
        if hashlib.sha256(data).hexdigest() != request_id:
            raise IntegrityError(f"{self.path}: request {request_id[:12]} is not what its name says")
        request = decode_request(data)
        self.requests[request_id] = data
        self.classes.update(request.classes)
        return request


def checked_run(folder: Path, *, thorough: bool = False) -> CheckedRun:
    """The run in `folder`, after everything in its card was checked; `thorough` asks a second accountant, too."""
    path = folder / "card.json"
    try:
        card: dict[str, Any] = json.loads(path.read_text())
        silos, judged, dataset = _rows(card, "silos"), _rows(card, "evaluation_at_silos"), card["dataset_sha256"]
        keys = {row["silo"]: bytes.fromhex(row["public_key"]) for row in silos}
        stated = {row["silo"]: _stated(row["together"]) for row in judged if row["held_out"] in (True, False)}
        if len(stated) != len(judged) or len(keys) != len(silos):
            raise ValueError("an evaluation read held-out records, or did not; and a silo has one row")
        classes = [str(name) for name in card["classes"]]
    except FileNotFoundError:
        raise DataError(f"{path}: there is no data card; is this a finished run?") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}: this is not a data card") from None
    _check_product(folder, card, dataset)
    source, opened, recomputed = _Folder(folder, keys), dict[str, list[Release]](), list[Recomputed]()
    for row in silos:
        releases = source.releases(row)
        recomputed.append(_checked_row(row, releases, source, card, thorough=thorough))
        opened[row["silo"]] = [release.bare() for release in releases]
    if "rounds" in card and len(silos) > 0:
        _check_rounds(card, opened, source)
    protected = bool(silos) and all(release.releasable for released in opened.values() for release in released)
    for row in judged:
        silo, releases = row["silo"], source.releases(row)
        if any(release.held_out != row["held_out"] for release in releases):
            raise IntegrityError(f"the card says other than {silo} whether its evaluation read held-out records")
        recomputed.append(_checked_row(row, releases, source, None, thorough=thorough))
        everything = [*opened[silo], *releases]
        recomputed.append(_checked_together(silo, stated[silo], everything, recomputed, thorough=thorough))
        protected = protected and all(release.releasable for release in releases)
    if card.get("protects_people") and not protected:
        raise IntegrityError("the card says that the run protects people, and not all of its releases do")
    if source.classes and set(classes) != source.classes:
        raise IntegrityError(f"the card has other classes than the silos were asked for: {sorted(source.classes)}")
    return CheckedRun(card, recomputed, source.requests)


def _check_rounds(card: Mapping[str, Any], opened: Mapping[str, Sequence[Release]], source: _Folder) -> None:
    """IntegrityError unless the releases are of the rounds in the card, and lead to what was asked in each."""
    digests = {
        (row["silo"], release.request_id): digest
        for row in card["silos"]
        for release, digest in zip(opened[row["silo"]], row["release_sha256"], strict=True)
    }

    def read(silo: str, request_id: str) -> Release:
        return open_signed(read_stored(source.path / "store", digests[silo, request_id]), source.keys[silo])

    try:
        check_rounds(card, opened, source.requests, read)
    except (KeyError, TypeError, AttributeError):
        raise IntegrityError("what the card says of rounds cannot be read") from None


def _checked_row(
    row: Mapping[str, Any],
    releases: Sequence[Release],
    source: _Folder,
    card: Mapping[str, Any] | None,
    *,
    thorough: bool,
) -> Recomputed:
    """A row of a card against the releases that it names, these against their requests, and ε anew.

    `card` is given for the releases that the dataset was made from.
    """
    silo = row["silo"]
    epsilon = row["epsilon"] if row["epsilon"] is not None else math.inf
    if any((each.guarantee.epsilon, each.guarantee.delta) != (epsilon, row["delta"]) for each in releases):
        raise IntegrityError(f"the card states another guarantee for {silo} than the silo signed")
    (found,) = privacy_rows(releases)
    if found["event"] != row["event"]:
        raise IntegrityError(f"the card states another event for {silo} than the silo signed")
    for key, value in found.items():
        if row.get(key, value) != value:
            said = reprlib.repr(row[key])
            raise IntegrityError(f"the card's {key} of {silo} is {said}, and by its releases {reprlib.repr(value)}")
    if any((release.kind is Kind.EVALUATION) == (card is not None) for release in releases):
        raise IntegrityError(f"the card's rows for {silo} mistake an evaluation for another release")
    distance = math.fsum(release.distance for release in releases)
    requests = [source.request(release.request_id) for release in releases]
    asked, known = None, [request for request in requests if request is not None]
    if len(known) == len(requests):
        expected = _checked_requests(silo, releases, known, card)
        _check_published(row, known[0])
        asked = f"request {known[0].first_stage().id[:12]}" + (f" in {len(known)} stages" if len(known) > 1 else "")
        plan = expected.plan
        distance = max(distance, plan.distance if plan.whole_distance is None else plan.whole_distance)
    event = events.compose(*(release.event for release in releases))
    first = check_guarantee(silo, releases[0].guarantee, event, distance)
    second = second_opinion(silo, first, event, distance) if thorough and math.isfinite(first.epsilon) else None
    return Recomputed(silo, "evaluation" if card is None else "dataset", asked, first, second)


def _check_published(row: Mapping[str, Any], request: ReleaseRequest) -> None:
    """IntegrityError where a card says that the method's paper says something else than it does."""
    if "epsilon_as_published" not in row:  # older cards have none
        return
    said, published = row["epsilon_as_published"], published_epsilon(request)
    if said != published:
        silo, shown = row["silo"], reprlib.repr(said)
        raise IntegrityError(f"the card's epsilon_as_published of {silo} is {shown}, and by its request {published}")


def _checked_requests(
    silo: str, releases: Sequence[Release], requests: Sequence[ReleaseRequest], card: Mapping[str, Any] | None
) -> Expected:
    """What was expected of the first of these releases, after all were compared; they are stages of one request."""
    stages = {request.stage for request in requests}
    if len({request.first_stage().id for request in requests}) > 1 or len(stages) < len(requests):
        raise IntegrityError(
            f"the card's row for {silo} names releases that are no stages of one: their costs add up, and it says one"
        )
    if card is not None:
        method, mode = requests[0].method, _mode(requests[0])
        if (card.get("method", method), card.get("mode", mode)) != (method, mode):
            raise IntegrityError(f"the card names another method or mode than {silo} was asked for: {method}, {mode}")
    expected = [expected_of(request) for request in requests]
    for release, each in zip(releases, expected, strict=True):
        check_release(release.header, each)
    return expected[0]


def _checked_together(
    silo: str,
    stated: tuple[float | None, float],
    releases: Sequence[Release],
    before: Sequence[Recomputed],
    *,
    thorough: bool,
) -> Recomputed:
    """All releases of a silo, as the accountant composes them; IntegrityError where the card states less."""
    found = together(releases)
    epsilon, needed = (math.inf if each is None else each for each in (stated[0], found["epsilon"]))
    if stated[1] != found["delta"] or epsilon < needed * (1.0 - 1e-9):
        raise IntegrityError(f"the card states less for all releases of {silo} together than they cost")
    first, second = Guarantee(needed, found["delta"], found["accountant"]), None
    event, distance = events.compose(*(each.event for each in releases)), math.fsum(each.distance for each in releases)
    if thorough and math.isfinite(needed):
        exact = recomputed_guarantee(event, distance, first.delta, needed)
        second = second_opinion(silo, exact, event, distance)
    asked = [each.asked for each in before if each.silo == silo]
    words = None if None in asked else " and ".join(each for each in asked if each is not None)
    return Recomputed(silo, "together", words, first, second)


def _check_product(folder: Path, card: Mapping[str, Any], expected: str) -> None:
    dataset = folder / "dataset" / (card["file"] if card.get("file") in (MODEL, COLUMNS) else DATASET)
    if not dataset.exists():
        raise DataError(f"{dataset}: the dataset is missing")
    if file_sha256(dataset) != expected:
        raise IntegrityError(f"{dataset}: the dataset is not the one in the card")
    _check_teacher(folder / "dataset" / TEACHER, card.get("teacher_sha256"))
    check_also(folder, card)
    check_pool_file(folder, card)


def _check_teacher(path: Path, expected: str | None) -> None:
    """IntegrityError for another teacher than the card's, or for one that the card does not speak of."""
    if not path.exists():
        if expected is not None:
            raise DataError(f"{path}: the teacher that the card names is missing")
    elif expected is None:
        raise IntegrityError(f"{path}: the card names no teacher; remove this one")
    elif file_sha256(path) != expected:
        raise IntegrityError(f"{path}: the teacher is not the one in the card")


def _rows(card: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of a card that name releases; ValueError, KeyError or TypeError unless they have their fields."""
    rows = card[name] if name == "silos" else card.get(name, [])
    if not isinstance(rows, list):
        raise TypeError(f"{name} is a list")
    for row in rows:
        _stated(row)
        if not (isinstance(row["silo"], str) and row["silo"].isprintable() and len(row["silo"]) <= 100):
            raise ValueError("a silo's name is short")
        if not isinstance(row["release_sha256"], list) or "event" not in row:
            raise TypeError("a row names releases and their event")
    return rows


def _stated(row: dict[str, Any]) -> tuple[float | None, float]:
    """ε (None is none) and δ in a row of a card; ValueError, KeyError or TypeError unless they are figures."""
    epsilon, delta = row["epsilon"], row["delta"]
    for figure in (delta,) if epsilon is None else (epsilon, delta):
        if type(figure) not in (int, float) or not 0 <= figure <= 1e300:
            raise ValueError("ε and δ are figures")
    return epsilon, delta


def _mode(request: ReleaseRequest) -> str:
    return "decentralised" if request.kind is Kind.DISTILLED_SET else "centralised"


def _figure(guarantee: Guarantee) -> str:
    return f"{guarantee.epsilon:.6g}"
