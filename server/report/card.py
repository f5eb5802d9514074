"""The data card: what the dataset is, who stands behind it under which guarantee, and how to check that."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpdd.common.cli import software
from dpdd.common.errors import IntegrityError
from dpdd.common.methods.request_plan import published_epsilon
from dpdd.common.methods.verification import recomputed_guarantee
from dpdd.common.privacy import events
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product import Product
from dpdd.common.synthesis.product_files import TEACHER, file_sha256
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import decode_request
from dpdd.server.report.card_text import markdown
from dpdd.server.report.comparison import MARGINALS
from dpdd.server.report.image_comparison import KEY as IMAGE_FIDELITY
from dpdd.server.report.scores import learner_facts, together_facts
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
    found = recomputed_guarantee(event, distance, delta, assumed)
    if math.isinf(found.epsilon):
        return {"epsilon": None, "delta": delta, "accountant": "none"}
    rounded_up = math.ceil(found.epsilon * 1e4) / 1e4  # so that what is printed is a bound, too
    return {"epsilon": rounded_up, "delta": delta, "accountant": found.accountant}


def write_card(
    folder: Path,
    scenario: Scenario,
    product: Product,
    dataset_sha256: str,
    releases: Sequence[Release],
    store: Store,
    roster: Roster,
    missing: Mapping[str, str],
    scores: Mapping[str, Any],
    evaluation: Sequence[Release] = (),
    joining: Mapping[str, Any] | None = None,
) -> None:
    """Write `card.json` and `CARD.md`, when the dataset is saved in `folder/dataset`.

    `scores` is what the evaluation gave (`accuracy` and other metrics by learner, `at_silos`); without any the card has
    none. `evaluation` are releases that the dataset was not made from, but judged by. `joining` is what
    `metrics.json` says, too, of how silos were joined.
    """
    rows, judged = privacy_rows(releases), evaluation_rows(releases, evaluation)
    for of, own in ((rows, by_silo(releases)), (judged, by_silo(evaluation))):
        for row in of:
            silo = row["silo"]
            row["release_sha256"] = [store.digest(release.request_id, silo) for release in own[silo]]
            row["public_key"] = roster.key_of(silo).hex()
    for row in rows:
        if (published := _published(by_silo(releases)[row["silo"]][0], store)) is not None:
            row["epsilon_as_published"] = published
    card = {
        "name": scenario.name,
        "summary": scenario.summary,
        "software": software(),
        "method": scenario.method.name,
        "mode": scenario.method.mode,
        "aggregation": scenario.aggregation.rule if scenario.method.mode == "centralised" else "union",
        "licence": scenario.licence,
        "classes": list(product.classes),
        **product.facts,
        **_records_per_class(product),
        "dataset_sha256": dataset_sha256,
        **_teacher_facts(product, folder),
        "protects_people": bool(rows) and all(row["releasable"] for row in [*rows, *judged]),
        "silos": rows,
        **({"evaluation_at_silos": judged} if judged else {}),
        "silos_without_release": dict(missing),
        **(joining or {}),
        **({"warnings": warnings} if (warnings := store.warnings([row["silo"] for row in rows])) else {}),
        **_evaluation(scenario, scores),
        **({"fidelity": scores["fidelity"]} if "fidelity" in scores else {}),
        **({IMAGE_FIDELITY: scores[IMAGE_FIDELITY]} if IMAGE_FIDELITY in scores else {}),
        **({"marginals": f"dataset/{MARGINALS}"} if (folder / "dataset" / MARGINALS).exists() else {}),
        **({"at_silos": scores["at_silos"]} if judged else {}),
        **({"pool": scores["pool"]} if "pool" in scores else {}),
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    (folder / "CARD.md").write_text(markdown(card))


def _published(release: Release, store: Store) -> float | None:
    """What the method's paper would say of a silo's noise, where it says something else."""
    request = store.request(release.request_id)
    return None if request is None else published_epsilon(decode_request(request))


def _records_per_class(product: Product) -> dict[str, Any]:
    """How many records of each class there are, in the order of the classes; nothing for a model."""
    if not isinstance(product, LabelledSet):
        return {}
    return {"records_per_class": np.bincount(product.labels, minlength=len(product.classes)).tolist()}


def _teacher_facts(product: Product, folder: Path) -> dict[str, Any]:
    """The hash of the saved teacher, and what it needs."""
    if product.teacher is None:
        return {}
    return {"teacher_sha256": file_sha256(folder / "dataset" / TEACHER), **product.teacher.facts}


def _evaluation(scenario: Scenario, scores: Mapping[str, Any]) -> dict[str, Any]:
    if not scores.get("accuracy"):
        return {}
    test_data = f"the test data of {scenario.data.dataset}" if scenario.data.dataset else "the coordinator's test data"
    return {"evaluation": {"test_data": test_data, "learners": learner_facts(scores), **together_facts(scores)}}
