"""Where a scenario's learners start from, and what is said when they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdd.common.errors import ConfigError
from dpdd.common.models.backbone import Provenance, build, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.server.run.checks import backbone_in_words
from dpdd.server.run.public_backbone import public_backbone
from dpdd.server.run.requests import make_request
from dpdd.server.run.scenario import Scenario


def scenario(method: str = "dp-merf", dataset: str = "fashion-slice", **evaluation: object) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "asks",
            "data": {"dataset": dataset},
            "method": {"name": method, "settings": {"backbone": "scatter28"} if method == "sps" else {}},
            "evaluation": evaluation,
        }
    )


def test_where_probe_and_fine_tuning_start_from() -> None:
    def name(**asked: object) -> str | None:
        backbone = public_backbone(scenario(**asked))
        return None if backbone is None else backbone.card.name

    assert name(method="sps", learners=["convnet", "probe"]) == "scatter28", "the method's own"
    assert name(method="sps", learners=["fine-tune"], backbone="gray28") == "gray28"
    assert name(method="dp-merf", learners=["ensemble"], runs=2, backbone="gray28") == "gray28"
    assert name(method="dp-merf") is None and name(method="dp-merf", learners=["probe"], runs=0) is None


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (
            {"method": "dp-merf", "learners": ["probe"]},
            r"learners asks for probe.*dp-merf has no.*evaluation\.backbone.*gray28",
        ),
        ({"method": "sps", "learners": ["probe", "fine-tune"]}, "asks for fine-tune.*scatter28.*nothing to fine-tune"),
        ({"method": "sps", "learners": ["ensemble"], "runs": 2}, "asks for ensemble.*scatter28.*nothing to fine-tune"),
        ({"method": "sps", "learners": ["probe"], "backbone": "rgb32"}, "1 channels.*made for 3"),
        ({"method": "sps", "learners": ["probe"], "backbone": "gray82"}, "no backbone 'gray82'"),
        (
            {"method": "sps", "learners": ["probe"], "backbone": "rgb32", "dataset": "tinyimagenet32"},
            "rgb32 was trained on tinyimagenet32",
        ),
    ],
)
def test_a_backbone_that_does_not_do_is_named_in_one_sentence(asked: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as error:
        public_backbone(scenario(**asked))
    assert "\n" not in str(error.value)


def test_left_open_it_is_the_one_for_the_images() -> None:
    asked = Scenario.model_validate(
        {
            "name": "asks",
            "data": {"dataset": "fashion-slice"},
            "method": {"name": "sps"},
            "evaluation": {"learners": ["probe"]},
        }
    )
    request = make_request(asked)
    backbone = public_backbone(asked)
    assert backbone is not None and backbone.card.name == "scatter28"
    assert request.settings["backbone"] == "scatter28" and request.settings["features"] == 512
    words = backbone_in_words(asked)
    assert words is not None and "scatter28 (none was named" in words
    assert backbone_in_words(scenario(method="sps")) == "public backbone: scatter28", "this one names it"
    assert backbone_in_words(scenario(method="dp-merf")) is None, "and this one has none"
    named = public_backbone(scenario(method="dp-merf", learners=["probe"], backbone="auto"))
    assert named is not None and named.card.name == "scatter28"


def test_a_network_for_larger_images_is_refused(tmp_path: Path) -> None:
    network = build(ConvNetArchitecture(1, 29, 20, 3, (4,)))
    save(tmp_path / "large", network, Provenance("none", "none", 0.0, "none", 0))
    with pytest.raises(ConfigError, match="large takes images from 29 x 20 pixels up, not 28 x 28"):
        public_backbone(scenario(method="sps", learners=["probe"], backbone=str(tmp_path / "large")))


def test_a_scattering_transform_for_another_size_is_refused(tmp_path: Path) -> None:
    from dpdd.common.models.scattering import ScatteringArchitecture, ScatteringNet

    network = ScatteringNet(ScatteringArchitecture(channels=1, height=16, width=16))
    save(tmp_path / "small", network, Provenance("none", "none", 0.0, "none", 0))
    with pytest.raises(ConfigError, match="small is for images of 16 x 16 pixels, not 28 x 28"):
        public_backbone(scenario(method="sps", learners=["probe"], backbone=str(tmp_path / "small")))
