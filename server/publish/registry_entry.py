"""`registry.yaml`: a draft entry for the public registry of differential privacy deployments.

Fields and words are those of the schema of OpenDP's Privacy Deployments Registry, `schemas/deployments-schema.yaml` in
github.com/opendp/deployments-registry-data as of 15 July 2026 (commit 3e9c812), which goes back to work by Ghazi,
Nanayakkara and Vadhan (arXiv 2509.13509). The card knows what is promised and how; who publishes the dataset, when,
where and what for it does not: those fields are required there, and say here that they are to be filled in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpdd.common.privacy import events
from dpdd.server.report.card_text import about_text, guarantees, release_rows
from dpdd.server.report.product import in_words

REGISTRY = "registry.yaml"
FILL_IN = "to be filled in"
NO_DATE = "1900-01-01"

_HEAD = f"""\
# A draft for the registry of differential privacy deployments (github.com/opendp/deployments-registry-data).
# What the data card says is filled in. What only the publisher knows reads "{FILL_IN}" or {NO_DATE}.
"""
_SLUG_GAP = re.compile(r"\W+|_")


def write_registry_entry(folder: Path, card: Mapping[str, Any]) -> None:
    """Write it into `folder`."""
    import yaml

    text = yaml.safe_dump(entry(card), sort_keys=False, allow_unicode=True, width=110)
    (folder / REGISTRY).write_text(_HEAD + text)


def _type(card: Mapping[str, Any]) -> str:
    if "described" in card:
        return "Summary statistics"
    return "Machine learning model" if "model" in card else "Synthetic data"


def entry(card: Mapping[str, Any]) -> dict[str, Any]:
    """The entry; only for a run that protects people."""
    basic = {
        "name": card["name"],
        "data_curators": [FILL_IN],
        "intended_use": FILL_IN,
        "data_product_type": _type(card),
        "data_product_region": FILL_IN,
        "description": " ".join(about_text(card).split()),
        "publication_date": NO_DATE,
    }
    return {
        "url_slug": _slug(basic["name"], *basic["data_curators"], NO_DATE[:4]),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": basic,
            "dp_variant": _variant(card),
            "privacy_loss": _privacy_loss(card),
            "deployment_model": _model(card),
            "accounting": _accounting(card),
            "implementation": _implementation(card),
            "administrative": {
                "sources": FILL_IN,
                "notes": f"`card.json` (dataset SHA-256 {card['dataset_sha256']}) and the silos' signed releases are "
                "published with the data; `dpdd-server verify` checks them.",
                "registry_authors": [FILL_IN],
            },
        },
    }


def _slug(*parts: str) -> str:
    """The registry's rule for addresses: name, curators and year, all but letters and digits as hyphens.

    >>> _slug("Cell images_2", "North hospital", "2026")
    'cell-images-2-north-hospital-2026'
    """
    return "-".join(_SLUG_GAP.sub("-", part.lower()) for part in parts)


def _variant(card: Mapping[str, Any]) -> dict[str, str]:
    columns = card.get("columns") or card.get("described", ())
    records = f"rows of {len(columns)} columns" if columns else _images(card)
    unprotected = "The class list, the form of records and the settings of the method, which are public."
    counts = [row["silo"] for row in card["silos"] if row["public_counts"]]
    if counts:
        unprotected += f" Class counts of {', '.join(counts)}, which were declared public there."
    if card.get("evaluation"):
        unprotected += f" Test figures, which are exact figures of {card['evaluation']['test_data']}."
    return {
        "variant_name": "Approximate DP",
        "data_domain": f"Multisets of labelled records in each silo: {records}, each with one of "
        f"{len(card['classes'])} classes ({', '.join(card['classes'])}).",
        "unprotected_quantities": unprotected,
    }


def _images(card: Mapping[str, Any]) -> str:
    channels, height, width = card["image_shape"]
    return f"images of {height}x{width} pixels and {channels} channel{'s' if channels > 1 else ''}"


def _privacy_loss(card: Mapping[str, Any]) -> dict[str, Any]:
    rows = guarantees(card)
    each = "; ".join(f"{row['silo']}: ε = {row['epsilon']:g}, δ = {row['delta']:g}" for row in rows)
    return {
        "privacy_unit": "Record-level",
        "privacy_unit_details": f"Neighbouring datasets: {events.NEIGHBOURS} (unbounded, add/remove). A person with "
        "several records in a silo has that guarantee for each of them. Labels, class counts and the number of records "
        "are protected too, unless stated as unprotected.",
        "privacy_parameters": {
            "epsilon": max(row["epsilon"] for row in rows),
            "delta": max(row["delta"] for row in rows),
        },
        "privacy_parameters_details": f"Per silo: {each}. The parameters above are the largest of these: silos hold "
        "different records, so a record is in one silo's releases only. A person with records in several silos has "
        "the composition of theirs.",
    }


def _model(card: Mapping[str, Any]) -> dict[str, str]:
    silos = len(card["silos"])
    return {
        "model_name": "Federated",
        "model_name_details": f"{silos} silo{'s' if silos > 1 else ''}, each with records of its own. A silo is the "
        "central curator of its records: it clips, sums and adds noise before anything leaves it. The guarantee needs "
        "no trust in other silos or in the coordinator.",
        "actors": "Silos see their own records. The coordinator and everybody else see signed, noisy releases and what "
        "is made from them.",
        "release_type": "One release",
        "release_type_details": "What a silo may release in all is bounded by a budget that it keeps itself.",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _accounting(card: Mapping[str, Any]) -> dict[str, str]:
    accountants = sorted({row["accountant"] for row in guarantees(card)})
    made = "set by each silo, then united" if card["aggregation"] == "union" else "from the silos' statistics"
    return {
        "post_processing": f"{in_words(card)[0].upper()}{in_words(card)[1:]}, made {made} ({card['method']}, silos "
        f"joined by {card['aggregation']}). This reads no record, and costs no further privacy.",
        "composition": f"All releases of a silo are accounted for together ({', '.join(accountants)}): the stated "
        "(ε, δ) is that of their composition. Over silos, which hold different records, composition is parallel.",
    }


def _implementation(card: Mapping[str, Any]) -> dict[str, str]:
    rows = {silo["silo"]: [row for row in release_rows(card) if row["silo"] == silo["silo"]] for silo in card["silos"]}
    described = {
        silo: ", and for evaluation ".join(events.describe(events.from_json(row["event"])) for row in own)
        for silo, own in rows.items()
    }
    noise = "; ".join(f"{silo}: {words}" for silo, words in described.items())
    if len(set(described.values())) == 1:
        noise = f"each silo: {next(iter(described.values()))}"
    distance = max(math.fsum(row["noise_distance"] for row in own) for own in rows.values())
    return {
        "preprocessing_and_hyperparameter_tuning": "The method's settings are part of a public request that is fixed "
        "before records are read; whether they were tuned on other data only the publisher knows.",
        "mechanisms": f"Gaussian mechanism on L2-clipped sums ({noise}; σ in units of the sensitivity), by "
        f"{card['software']} ({card['method']}). Clipping is in fixed point, so that the sensitivity is exact. Noise "
        "is a discrete Gaussian from a cryptographic generator, drawn once; its statistical distance to the ideal, "
        f"{distance:.2g}, is part of δ.",
        "justification": FILL_IN,
    }
