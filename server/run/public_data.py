"""Which public data a run would touch, for people who may use none: `--no-public-data`.

A backbone whose weights were trained, public images as material, a pretrained generator: each stands under somebody's
terms, and each may have seen records that a silo holds. Scattering transforms, random networks and images that are
drawn in code have seen nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpdd.common.errors import ConfigError
from dpdd.common.methods.registry import query
from dpdd.common.models import backbone as backbones
from dpdd.common.models.choice import backbone_for, built_shape
from dpdd.server.run.public_backbone import public_backbone
from dpdd.server.run.requests import resolved_settings
from dpdd.server.run.scenario import Scenario


def check_public_data(scenario: Scenario, allowed: bool) -> None:
    """ConfigError, which names all of it, where a run would touch public data and is not allowed to."""
    if allowed:
        return
    found = list(dict.fromkeys(public_data(scenario)))
    if found:
        shape = scenario.schema.shape
        instead = f'; backbone = "{backbone_for(shape)}" has seen no data' if len(shape) == 3 else ""
        raise ConfigError(f"--no-public-data: this run would touch {', and '.join(found)}{instead}")


def public_data(scenario: Scenario) -> Iterator[str]:
    """Everything of public data that the run of a scenario would touch, in words."""
    settings, _ = resolved_settings(scenario)
    chosen = query(scenario.method.name)
    named = [name for name in chosen.backbones(settings) if built_shape(name) is None]
    cards = [backbones.load(name).card for name in named]
    if (learners := public_backbone(scenario)) is not None:
        cards.append(learners.card)
    for card in cards:
        if card.classes:
            provenance = card.provenance
            yield f"backbone {card.name} (trained on {provenance.public_data}; {provenance.licence})"
    yield from (f"images of {name}" for name in chosen.public_datasets(settings))
    yield from (f"the pretrained model {name}" for name in chosen.public_models(settings))
    if (pool := scenario.synthesis.pool) is not None:
        yield f"the public pool {pool.title} ({pool.licence})"
