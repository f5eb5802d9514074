"""`--no-public-data`: every scenario that touches public data is refused, with all of it by name, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone as backbones
from dpdd.common.models.choice import available, shipped_weights
from dpdd.scenarios.cli import main
from dpdd.server.run.public_data import check_public_data, public_data
from dpdd.server.run.scenario import Scenario, load_scenario


def scenario(method: dict[str, Any], shape: tuple[int, ...] = (1, 28, 28), **more: Any) -> Scenario:
    """A study of own data with such a method."""
    data = {"classes": ["a", "b", "c"], "shape": list(shape)}
    return Scenario.model_validate({"name": "study", "data": data, "method": method, **more})


POOL = {"dataset": "tinyimagenet32", "licence": "ImageNet's terms"}
TOUCHED: dict[str, tuple[Scenario, str]] = {
    "method": (scenario({"name": "sps", "settings": {"backbone": "gray28"}}), "backbone gray28 (trained on tinyimage"),
    "learner": (
        scenario({"name": "dp-merf"}, evaluation={"learners": ["probe"], "backbone": "gray28"}),
        "backbone gray28 (trained on tinyimage",
    ),
    "generator": (
        scenario({"name": "private-evolution", "settings": {"generator": "pool", "pool": "mnist"}}),
        "images of mnist",
    ),
    "model": (
        scenario({"name": "private-evolution", "settings": {"generator": "diffusion", "model": "theirs"}}, (3, 32, 32)),
        "the pretrained model theirs",
    ),
    "generator of DP-GENG": (
        scenario(
            {
                "name": "dp-geng",
                "settings": {
                    "generator": "private-evolution",
                    "generator_settings": {"generator": "pool", "pool": "mnist"},
                },
            }
        ),
        "images of mnist",
    ),
    "pool": (
        scenario({"name": "sps", "settings": {"backbone": "scatter32"}}, (3, 32, 32), synthesis={"pool": POOL}),
        "the public pool tinyimagenet32 (ImageNet's terms)",
    ),
}


@pytest.mark.parametrize("touched", TOUCHED)
def test_what_touches_public_data_is_refused_by_name(touched: str) -> None:
    study, words = TOUCHED[touched]
    assert [each for each in public_data(study) if each.startswith(words)]
    with pytest.raises(ConfigError, match=r"^--no-public-data: this run would touch ") as refusal:
        check_public_data(study, allowed=False)
    assert words in str(refusal.value)
    check_public_data(study, allowed=True)


NO_DATA: dict[str, Scenario] = {
    "sps": scenario({"name": "sps", "settings": {"backbone": "scatter28"}}),
    "sps in colour": scenario({"name": "sps"}, (3, 32, 32)),
    "dosser": scenario({"name": "dosser", "settings": {"dimensions": 20}}),
    "dp-kip": scenario({"name": "dp-kip"}),
    "private-evolution": scenario({"name": "private-evolution", "settings": {"generator": "shapes"}}),
    "dp-geng": scenario({"name": "dp-geng"}),
    "quickstart": load_scenario("quickstart"),
}


@pytest.mark.parametrize("name", NO_DATA)
def test_what_has_seen_no_data_is_not(name: str) -> None:
    check_public_data(NO_DATA[name], allowed=False)


def test_a_notice_beside_the_weights_names_the_data_and_terms_of_each() -> None:
    notice = " ".join(shipped_weights().joinpath("NOTICE").read_text().split())
    for name in available():
        provenance = backbones.load(name).card.provenance
        assert f"{name}.safetensors: {provenance.public_data}" in notice and provenance.licence in notice


def test_the_command_says_it_before_it_makes_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'name = "study"\ndata = { dataset = "fashion-slice" }\n'
        '[method]\nname = "sps"\nsettings = { backbone = "gray28" }\n'
    )
    assert main(["run", str(study), "--no-public-data", "--out", str(tmp_path / "run")]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert "gray28 (trained on tinyimagenet32-gray28; ImageNet" in said and 'backbone = "scatter28" has seen no' in said
    assert not (tmp_path / "run").exists()
