"""The data card: what the dataset is, who stands behind it under which guarantee, and how to check that."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpdd.common.cli import software, table
from dpdd.common.privacy import events
from dpdd.common.scenario import Scenario
from dpdd.common.synthesis.dataset import FILE, SyntheticSet
from dpdd.common.wire.release import Release
from dpdd.server.roster import Roster


def privacy_rows(releases: Sequence[Release]) -> list[dict[str, Any]]:
    """Per silo: the guarantee that each person in it has, as `metrics.json` and the card show it."""
    return [
        {
            "silo": release.silo,
            "epsilon": release.guarantee.epsilon if math.isfinite(release.guarantee.epsilon) else None,
            "delta": release.guarantee.delta,
            "accountant": release.guarantee.accountant,
            "neighbours": events.NEIGHBOURS,
            "releases": 1,
            "event": events.to_json(release.event),
            "noise_distance": release.distance,
            "releasable": release.releasable,
            "public_counts": list(release.public_counts) or None,
        }
        for release in releases
    ]


def write_card(
    folder: Path,
    scenario: Scenario,
    made: SyntheticSet,
    dataset_sha256: str,
    releases: Sequence[Release],
    digests: Mapping[str, str],
    roster: Roster,
    missing: Mapping[str, str],
) -> None:
    """Write `card.json` and `CARD.md`."""
    rows = privacy_rows(releases)
    for row in rows:
        row["release_sha256"] = digests[row["silo"]]
        row["public_key"] = roster.key_of(row["silo"]).hex()
    card = {
        "name": scenario.name,
        "summary": scenario.summary,
        "software": software(),
        "method": scenario.method.name,
        "mode": scenario.method.mode,
        "aggregation": scenario.method.aggregation if scenario.method.mode == "centralised" else "union",
        "classes": list(made.classes),
        "images": len(made),
        "image_shape": list(made.images.shape[1:]),
        "dataset_sha256": dataset_sha256,
        "protects_people": bool(rows) and all(row["releasable"] for row in rows),
        "silos": rows,
        "silos_without_release": dict(missing),
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    (folder / "CARD.md").write_text(_markdown(card, releases))


def _markdown(card: Mapping[str, Any], releases: Sequence[Release]) -> str:
    if card["protects_people"]:
        promise = (
            "Each person's records lie in one silo, and are protected by that silo's (ε, δ) below: nobody who sees\n"
            "this dataset, or anything made from it, learns more about whether one labelled record was in the silo's\n"
            "data than that bound allows. Using the dataset costs no further privacy."
        )
    else:
        promise = "**This is a simulation. Its noise is repeatable or absent, and it protects nobody.**"
    header = ["silo", "ε", "δ", "accountant", "event", "release (SHA-256)"]
    cells = [
        [
            row["silo"],
            "∞" if row["epsilon"] is None else f"{row['epsilon']:g}",
            f"{row['delta']:g}",
            row["accountant"],
            events.describe(release.event),
            row["release_sha256"][:16] + "…",
        ]
        for row, release in zip(card["silos"], releases, strict=True)
    ]
    open_silos = [row["silo"] for row in card["silos"] if row["public_counts"]]
    counts = "Labels, class counts and the number of records are protected too."
    if open_silos:
        counts = (
            f"Labels are protected too; class counts are, except of {', '.join(open_silos)}: declared public there."
        )
    absent = "".join(f"- {silo}: {why}\n" for silo, why in card["silos_without_release"].items())
    return f"""# {card["name"]}

{card["summary"]}

{card["images"]} images in {len(card["classes"])} classes ({", ".join(card["classes"])}), made by {card["software"]}
with {card["method"]} ({card["mode"]}, silos joined by {card["aggregation"]}).

## Privacy

{promise}

Neighbours: {events.NEIGHBOURS}. {counts}

```
{table(header, cells)}
```
{"Silos that did not take part:" + chr(10) + absent if absent else ""}
## Verifying

- `dataset/{FILE}` has SHA-256 `{card["dataset_sha256"]}`.
- Every release named above lies in `store/` under its SHA-256, signed (Ed25519) with the key in `card.json`.
"""
