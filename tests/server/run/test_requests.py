"""One request for every ε, and no backbone that has seen the run's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpdd.common.data.benchmarks import FASHION_CLASSES
from dpdd.common.errors import ConfigError
from dpdd.common.methods.registry import method
from dpdd.common.models.backbone import Provenance, build, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.synthesis.distilled_set import distilled_set_settings, method_values
from dpdd.common.wire.request import Kind, decode_request
from dpdd.server.run.requests import backbone_sha256, make_request, request_groups
from dpdd.server.run.scenario import Scenario


def scenario(**changes: Any) -> Scenario:
    values: dict[str, Any] = {"name": "asked", "data": {"dataset": "fashion-slice"}, "method": {"name": "dp-merf"}}
    return Scenario.model_validate(values | changes)


def test_silos_with_the_same_epsilon_get_the_same_request() -> None:
    unequal = scenario(privacy={"epsilon": 1.0, "epsilons": {"north": 4.0, "south": 4.0}})
    asked = request_groups(unequal, ["north", "south", "east", "west"])
    assert {group.request.epsilon: group.silos for group in asked} == {
        1.0: {"east", "west"},
        4.0: {"north", "south"},
    }
    assert len(request_groups(scenario(), ["north", "south"])) == 1
    assert request_groups(scenario(), ["north"])[0].request == make_request(scenario())


def test_a_request_for_sets_pins_what_the_silo_will_do() -> None:
    local = scenario(
        method={"name": "dp-merf", "mode": "decentralised"},
        synthesis={"images_per_class": 50, "settings": {"steps": 7}},
    )
    request = decode_request(make_request(local).encode())
    asked = distilled_set_settings(request)
    assert request.kind is Kind.DISTILLED_SET
    assert asked.images_per_class == 17  # a third of 50, rounded up
    assert asked.synthesis["steps"] == 7 and asked.synthesis["batch"] == 200  # defaults are written out
    assert method_values(request) == make_request(scenario()).settings


EVEN = dict.fromkeys(FASHION_CLASSES, 0.1)


def test_priors_are_no_part_of_what_silos_are_asked_for() -> None:
    """Sums do not depend on them; sets are asked for with equal ones, whichever are declared, or as ever with none."""
    for mode in ("centralised", "decentralised"):
        asked = [
            make_request(scenario(method={"name": "dp-merf", "mode": mode}, synthesis={"priors": priors})).encode()
            for priors in (None, "equal", "as-released", EVEN)
        ]
        assert asked[1] == asked[2] == asked[3] and (asked[0] == asked[1]) == (mode == "centralised")
    local = {"name": "dp-merf", "mode": "decentralised"}
    old, new = (make_request(scenario(method=local, synthesis={"priors": each})).settings for each in (None, EVEN))
    assert "priors" not in old and new == {**old, "priors": "equal"}


def test_given_priors_are_of_the_classes_that_are_asked_about() -> None:
    with pytest.raises(ConfigError, match="'Bag' has none; the classes are T-shirt/top"):
        make_request(scenario(synthesis={"priors": {name: 1 / 9 for name in FASHION_CLASSES if name != "Bag"}}))


def test_a_backbone_is_named_by_its_hash_and_must_not_know_the_data(tmp_path: Path) -> None:
    network = build(ConvNetArchitecture(channels=1, height=8, width=8, classes=3, widths=(4, 6)))
    facts = Provenance(public_data="fashion-mnist", licence="none", accuracy=0.5, command="none", seed=0)
    card = save(tmp_path / "tiny", network, facts)
    tiny = str(tmp_path / "tiny")
    assert backbone_sha256([tiny], "mnist") == bytes.fromhex(card.sha256) == backbone_sha256([tiny, "scatter28"], "x")
    assert backbone_sha256([], "mnist") == b"" == backbone_sha256(method("dp-merf").backbones(None), "x")
    more = {"backbone": "scatter28", "more_backbones": (tiny,), "stages": 2, "class_layers": 1}
    assert method("sps").backbones(method("sps").settings(more)) == ("scatter28", tiny)
    for dataset in ("fashion-mnist", "fashion-slice"):
        with pytest.raises(ConfigError, match="backbone tiny was trained on fashion-mnist"):
            backbone_sha256([tiny], dataset)
        with pytest.raises(ConfigError, match="backbone tiny was trained on fashion-mnist"):
            backbone_sha256(["scatter28", tiny], dataset)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"name": "dp-merf", "mode": "decentralised"}, "aggregation": {"rule": "precision"}}, "no sums"),
        ({"aggregation": {"rule": "median"}}, "no aggregation rule 'median'"),
        ({"aggregation": {"outliers": "keep"}}, "outliers"),
        ({"method": {"name": "dp-merf", "mode": "anarchic"}}, "mode"),
    ],
)
def test_what_cannot_be_asked_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        scenario(**changes)
