"""`registry.yaml`: the fields and words of the public registry, and the card's own figures in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.product import Product, ReleasedModel
from dpdd.server.publish.registry_entry import FILL_IN, entry, write_registry_entry
from tests.server.finished_runs import CLASSES, finished_run, images, table

FIELDS: dict[str, set[str]] = {
    "basic": {
        "name",
        "data_curators",
        "intended_use",
        "data_product_type",
        "data_product_region",
        "description",
        "publication_date",
        "data_product_sector",
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        "privacy_unit",
        "privacy_unit_details",
        "privacy_parameters",
        "privacy_parameters_details",
    },
    "deployment_model": {
        "model_name",
        "model_name_details",
        "actors",
        "release_type",
        "release_type_details",
        "data_source_type",
        "data_source_type_details",
        "access_type",
        "access_type_details",
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {"preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"},
    "administrative": {"sources", "notes", "registry_authors"},
}
"""The sections of the registry's schema, and their fields; no others may be in an entry."""
REQUIRED = FIELDS["basic"] - {"data_product_sector"}
WORDS = {
    ("basic", "data_product_type"): {"Synthetic data", "Machine learning model", "Dataset", "Summary statistics"},
    ("dp_variant", "variant_name"): {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
    ("deployment_model", "model_name"): {"Local", "Central", "Shuffle", "Federated", "Varies"},
    ("deployment_model", "release_type"): {"One release", "Many releases"},
    ("deployment_model", "data_source_type"): {"Static", "Dynamic"},
    ("deployment_model", "access_type"): {"Interactive", "Non-interactive"},
}
MODEL = ReleasedModel.of(EvaluationConvNet((1, 8, 8), 2, 4), CLASSES, (1, 8, 8), width=4)


def read(folder: Path, product: Product) -> dict[str, Any]:
    write_registry_entry(folder, finished_run(folder / "run", product))
    found: dict[str, Any] = yaml.safe_load((folder / "registry.yaml").read_text())
    return found


@pytest.mark.parametrize("product", [images(), images(3), table(), MODEL], ids=["grey", "colour", "table", "model"])
def test_fields_and_words_are_the_registrys(tmp_path: Path, product: Product) -> None:
    found = read(tmp_path, product)
    assert set(found) == {"url_slug", "status", "tier", "deployment"} and found["status"] == "Draft"
    deployment = found["deployment"]
    assert deployment.keys() == FIELDS.keys() and deployment["basic"].keys() >= REQUIRED
    for section, fields in deployment.items():
        assert fields.keys() <= FIELDS[section]
        for name, value in fields.items():
            assert value in WORDS.get((section, name), (value,))
            assert isinstance(value, dict if name == "privacy_parameters" else (str, list))
    assert deployment["basic"]["data_product_type"] == (
        "Machine learning model" if product is MODEL else "Synthetic data"
    )


def test_the_parameters_are_those_of_the_silo_with_the_least_protection(tmp_path: Path) -> None:
    card = finished_run(tmp_path, images())
    card["silos"][0] |= {"epsilon": 3.5, "delta": 1e-7}
    card["silos"][1] |= {"epsilon": 0.5, "delta": 1e-6}
    loss = entry(card)["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 3.5, "delta": 1e-6}
    assert "north: ε = 3.5, δ = 1e-07; south: ε = 0.5, δ = 1e-06" in loss["privacy_parameters_details"]
    assert "add or remove one labelled record" in loss["privacy_unit_details"]


def test_what_is_public_is_said(tmp_path: Path) -> None:
    card = finished_run(tmp_path / "one", images())
    quantities = entry(card)["deployment"]["dp_variant"]["unprotected_quantities"]
    assert "Test figures, which are exact figures of the test data of fashion-slice" in quantities
    assert "Class counts" not in quantities
    card["silos"][1]["public_counts"] = [3, 4]
    assert "Class counts of south" in entry(card)["deployment"]["dp_variant"]["unprotected_quantities"]
    silent = finished_run(tmp_path / "two", images(), scores={"accuracy": {}})
    assert "Test figures" not in entry(silent)["deployment"]["dp_variant"]["unprotected_quantities"]


def test_what_the_card_does_not_know_is_left_to_the_publisher(tmp_path: Path) -> None:
    basic = read(tmp_path, images())["deployment"]["basic"]
    assert basic["data_curators"] == [FILL_IN] and basic["publication_date"] == "1900-01-01"
    assert f'reads "{FILL_IN}"' in (tmp_path / "registry.yaml").read_text().splitlines()[1]
