"""Synthetic images beside public test images: how close they are in a public network's features, in figures.

>>> facts = {"backbone": "gray28", "dimensions": 128, "images": 500, "real_images": 2000, "frechet": 12.345,
...          "density": 0.61, "coverage": 0.42, "neighbours": 5, "label_entropy": 0.7}
>>> print(image_distances_table(facts))
500 images beside 2000 test images, features of gray28
------------------------------------------------------  ------
Fréchet distance                                        12.345
density (about 1 for real images)                        0.610
coverage (share of test images)                          0.420
label entropy, bits                                      0.700
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import table
from dpdd.common.synthesis.labelled_set import LabelledSet

if TYPE_CHECKING:
    from dpdd.common.synthesis.product import Product
    from dpdd.server.run.scenario import Scenario

KEY = "image_fidelity"
"""In `metrics.json` and in a card."""

_TITLES = {
    "frechet": "Fréchet distance",
    "density": "density (about 1 for real images)",
    "coverage": "coverage (share of test images)",
    "label_entropy": "label entropy, bits",
}


def compare_images(product: Product, scenario: Scenario) -> dict[str, Any]:
    """For `metrics.json`, where a scenario asks for it (`evaluation.fidelity`), and there are images of both kinds."""
    from dpdd.server.evaluation.image_fidelity import image_fidelity
    from dpdd.server.run.public_backbone import fidelity_backbone

    if not isinstance(product, LabelledSet) or product.is_table or len(product) == 0:
        return {}
    backbone = fidelity_backbone(scenario)
    test = scenario.test_data() if backbone is not None else None
    if backbone is None or test is None or len(test) == 0:
        return {}
    return {KEY: image_fidelity(backbone, product, test)}


def image_distances_table(facts: Mapping[str, Any]) -> str:
    """What `image_fidelity` found, for people."""
    figures = {title: f"{facts[name]:.3f}" for name, title in _TITLES.items() if name in facts}
    width = max(map(len, figures.values()))
    rows = [[title, figure.rjust(width)] for title, figure in figures.items()]
    beside = f"{facts['images']} images beside {facts['real_images']} test images, features of {facts['backbone']}"
    return table([beside, ""], rows)


def image_comparison_text(card: Mapping[str, Any]) -> str:
    """The same in a card, with what it means; empty where nothing was compared."""
    if (facts := card.get(KEY)) is None:
        return ""
    return (
        f"```\n{image_distances_table(facts)}\n```\n\n"
        "Density and coverage count balls around test images that reach their fifth neighbour (Naeem et al. 2020).\n"
        "These are exact figures of test data, which no noise protects, and no part of the privacy claim above."
    )
