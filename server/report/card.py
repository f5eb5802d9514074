"""The data card: what the dataset is, who stands behind it under which guarantee, and how to check that."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpdd.common.cli import software, table
from dpdd.common.errors import IntegrityError
from dpdd.common.privacy import events
from dpdd.common.privacy.accounting import guarantee
from dpdd.common.synthesis.product import Product
from dpdd.common.synthesis.product_files import TEACHER, file_sha256
from dpdd.common.wire.release import Release
from dpdd.server.report.product import in_words
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import Scenario
from dpdd.server.run.store import Store


def by_silo(releases: Iterable[Release]) -> dict[str, list[Release]]:
    """Each silo's releases, in the order given (which is that of the stages); silos by name."""
    grouped: dict[str, list[Release]] = {}
    for release in releases:
        grouped.setdefault(release.silo, []).append(release)
    return dict(sorted(grouped.items()))


def privacy_rows(releases: Iterable[Release]) -> list[dict[str, Any]]:
    """Per silo: the guarantee that each person in it has, as `metrics.json` and the card show it.

    Every stage's release states the guarantee of all stages together, so it is named once.
    """
    return [_row(silo, stages) for silo, stages in by_silo(releases).items()]


def _row(silo: str, releases: Sequence[Release]) -> dict[str, Any]:
    first = releases[0]
    if any(release.guarantee != first.guarantee for release in releases):
        raise IntegrityError(f"silo {silo} states different guarantees for stages of one run")
    return {
        "silo": silo,
        "epsilon": first.guarantee.epsilon if math.isfinite(first.guarantee.epsilon) else None,
        "delta": first.guarantee.delta,
        "accountant": first.guarantee.accountant,
        "neighbours": events.NEIGHBOURS,
        "releases": len(releases),
        "event": events.to_json(events.compose(*(release.event for release in releases))),
        "noise_distance": math.fsum(release.distance for release in releases),
        "releasable": all(release.releasable for release in releases),
        "public_counts": list(first.public_counts) or None,
    }


def evaluation_rows(releases: Iterable[Release], evaluation: Iterable[Release]) -> list[dict[str, Any]]:
    """Per silo that evaluated: the guarantee of its evaluation, and of that and its other releases `together`."""
    before, rows = by_silo(releases), []
    for silo, evaluated in by_silo(evaluation).items():
        row = {**_row(silo, evaluated), "held_out": all(release.held_out for release in evaluated)}
        row["together"] = together([*before.get(silo, []), *evaluated])
        rows.append(row)
    return rows


def together(releases: Sequence[Release]) -> dict[str, Any]:
    """An (ε, δ) that holds for all these releases of one silo together, at the largest δ that they state.

    The accountant composes their events, as adaptively chosen as they were: what was evaluated had been learnt from the
    releases before. The noise's distance to the ideal, (1 + e^ε) times that of all of them, comes off δ first.
    """
    event = events.compose(*(release.event for release in releases))
    delta = max(release.guarantee.delta for release in releases)
    distance = math.fsum(release.distance for release in releases)
    if math.isinf(sum(release.guarantee.epsilon for release in releases)):
        return {"epsilon": None, "delta": delta, "accountant": "none"}
    assumed = math.fsum({release.request_id: release.guarantee.epsilon for release in releases}.values()) + 1.0
    while True:
        left = delta - (1.0 + math.exp(min(assumed, 700.0))) * distance
        if left <= 0.0:
            return {"epsilon": None, "delta": delta, "accountant": "none"}
        found = guarantee(event, left)
        if found.epsilon <= assumed:  # so that no less was taken off δ than this ε needs
            rounded_up = math.ceil(found.epsilon * 1e4) / 1e4  # so that what is printed is a bound, too
            return {"epsilon": rounded_up, "delta": delta, "accountant": found.accountant}
        assumed = found.epsilon + 1.0


def budget_cells(row: Mapping[str, Any]) -> list[str]:
    """The silo, ε and δ of one of the `privacy_rows`, for a table.

    >>> budget_cells({"silo": "north", "epsilon": None, "delta": 1e-5})
    ['north', '∞', '1e-05']
    """
    epsilon = "∞" if row["epsilon"] is None else f"{row['epsilon']:g}"
    return [row["silo"], epsilon, f"{row['delta']:g}"]


def write_card(
    folder: Path,
    scenario: Scenario,
    product: Product,
    dataset_sha256: str,
    releases: Sequence[Release],
    store: Store,
    roster: Roster,
    missing: Mapping[str, str],
    evaluation: Sequence[Release] = (),
) -> None:
    """Write `card.json` and `CARD.md`, when the dataset is saved in `folder/dataset`.

    `evaluation` are releases that the dataset was not made from, but judged by.
    """
    rows, judged = privacy_rows(releases), evaluation_rows(releases, evaluation)
    for of, own in ((rows, by_silo(releases)), (judged, by_silo(evaluation))):
        for row in of:
            silo = row["silo"]
            row["release_sha256"] = [store.digest(release.request_id, silo) for release in own[silo]]
            row["public_key"] = roster.key_of(silo).hex()
    card = {
        "name": scenario.name,
        "summary": scenario.summary,
        "software": software(),
        "method": scenario.method.name,
        "mode": scenario.method.mode,
        "aggregation": scenario.method.aggregation if scenario.method.mode == "centralised" else "union",
        "classes": list(product.classes),
        **product.facts,
        "dataset_sha256": dataset_sha256,
        **({} if product.teacher is None else {"teacher_sha256": file_sha256(folder / "dataset" / TEACHER)}),
        "protects_people": bool(rows) and all(row["releasable"] for row in [*rows, *judged]),
        "silos": rows,
        **({"evaluation_at_silos": judged} if judged else {}),
        "silos_without_release": dict(missing),
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    (folder / "CARD.md").write_text(_markdown(card))


def _markdown(card: Mapping[str, Any]) -> str:
    if card["protects_people"]:
        promise = (
            "Each person's records lie in one silo, and are protected by that silo's (ε, δ) below: nobody who sees\n"
            "this dataset, or anything made from it, learns more about whether one labelled record was in the silo's\n"
            "data than that bound allows. Using the dataset costs no further privacy."
        )
    else:
        promise = "**This is a simulation. Its noise is repeatable or absent, and it protects nobody.**"
    header = ["silo", "ε", "δ", "accountant", "event", "releases (SHA-256)"]
    cells = [
        [
            *budget_cells(row),
            row["accountant"],
            events.describe(events.from_json(row["event"])),
            " ".join(digest[:16] + "…" for digest in row["release_sha256"]),
        ]
        for row in card["silos"]
    ]
    judged = card.get("evaluation_at_silos", [])
    if judged:
        header, cells = _with_evaluation(header, cells, judged)
    open_silos = [row["silo"] for row in card["silos"] if row["public_counts"]]
    counts = "Labels, class counts and the number of records are protected too."
    if open_silos:
        counts = (
            f"Labels are protected too; class counts are, except of {', '.join(open_silos)}: declared public there."
        )
    teacher = ""
    if "teacher_sha256" in card:
        teacher = f"- `dataset/{TEACHER}`, made from the same releases, has SHA-256 `{card['teacher_sha256']}`.\n"
    absent = "".join(f"- {silo}: {why}\n" for silo, why in card["silos_without_release"].items())
    return f"""# {card["name"]}

{card["summary"]}

{in_words(card)} in {len(card["classes"])} classes ({", ".join(card["classes"])}), made by {card["software"]}
with {card["method"]} ({card["mode"]}, silos joined by {card["aggregation"]}).

## Privacy

{promise}

Neighbours: {events.NEIGHBOURS}. {counts}

```
{table(header, cells)}
```
{_about_evaluation(judged)}{"Silos that did not take part, or not in every stage:" + chr(10) + absent if absent else ""}
## Verifying

- `dataset/{card["file"]}` has SHA-256 `{card["dataset_sha256"]}`.
{teacher}- Every release named above lies in `store/` under its SHA-256, signed (Ed25519) with the key in `card.json`.
"""


def _with_evaluation(
    header: list[str], cells: list[list[str]], judged: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    """The table with a column that says what was released for, and two lines more for each silo that evaluated."""
    lines = []
    rows = {row["silo"]: row for row in judged}
    for silo, *rest in cells:
        lines.append([silo, "dataset", *rest])
        if silo in rows:
            row = rows[silo]
            event = events.describe(events.from_json(row["event"]))
            digests = " ".join(digest[:16] + "…" for digest in row["release_sha256"])
            lines.append([silo, "evaluation", *budget_cells(row)[1:], row["accountant"], event, digests])
            both = {"silo": silo, **row["together"]}
            lines.append([silo, "together", *budget_cells(both)[1:], both["accountant"], "", ""])
    return [header[0], "for", *header[1:]], lines


def _about_evaluation(judged: Sequence[Mapping[str, Any]]) -> str:
    """What the evaluation read, in a sentence."""
    if not judged:
        return ""
    inside = [row["silo"] for row in judged if not row["held_out"]]
    if not inside:
        read = "records that the silos held out: no release that the dataset was made from has read them"
    else:
        read = (
            f"all records of {', '.join(inside)} (in-sample: the dataset was made from them), held-out ones elsewhere"
        )
    return (
        f"The evaluation at the silos read {read}.\nWhat holds for a silo that evaluated is the line 'together'; it "
        "does not assume that the two releases read different records.\n"
    )
