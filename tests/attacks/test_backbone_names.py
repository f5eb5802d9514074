"""A request names a public backbone, and never a file of the silo's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdd.client.policy import OWN_BACKBONE
from dpdd.client.rehearsal import rehearse
from dpdd.client.silo import Silo
from dpdd.common.models import backbone
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.request import ReleaseRequest
from tests.client.silos import make_request, make_silo
from tests.server.transport.worlds import entries

NAMES = [
    "/etc/passwd",
    "../../state/key.pem",
    "~/weights",
    "weights/mine",
    "mine.safetensors",
    "mine.json",
    "mine",
    "",
    "scattering-1x8x9999999999",
    "SCATTER28",
]


def sps_silo(folder: Path, listed: str = "") -> Silo:
    make_silo(folder, extra=f"backbones = [{listed}]")
    path = folder / "silo.toml"
    path.write_text(path.read_text().replace('methods = ["dp-merf"]', 'methods = ["sps"]'))
    return Silo(folder)


def request_with(**settings: object) -> ReleaseRequest:
    return make_request(method="sps", settings={"features": 4, "picture": 2, **settings})


def own_backbone(path: Path) -> backbone.Card:
    network = backbone.build(ConvNetArchitecture(channels=1, height=8, width=8, classes=3, widths=(4, 6)))
    return backbone.save(path, network, backbone.Provenance("noise", "none needed", 0.0, "none", 0))


@pytest.mark.parametrize("there", [False, True])
def test_a_file_is_refused_with_one_sentence_whether_it_is_there_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """As the first backbone and as another, in earnest and in a dry round."""
    monkeypatch.chdir(tmp_path)
    if there:
        (tmp_path / "weights").mkdir()
        own_backbone(tmp_path / "mine")
        own_backbone(tmp_path / "weights" / "mine")
    silo = sps_silo(tmp_path / "silo")
    layers = {"class_layers": 1, "stages": 2, "more_sha256": ["00" * 32]}
    absolute = [str(tmp_path / "mine"), str(tmp_path / "mine.safetensors")]
    for name in [*NAMES, *absolute]:
        for request in (request_with(backbone=name), request_with(more_backbones=[name], **layers)):
            answer, report = silo.answer(request.encode()), rehearse(silo, request.encode())
            assert isinstance(answer, Refusal), name
            assert (answer.reason, answer.message) == (Reason.MALFORMED, OWN_BACKBONE), name
            assert report.refusal is not None and report.refusal.message == OWN_BACKBONE
    assert entries(silo) == ["open"]


def test_a_file_that_the_operator_lists_may_be_named_and_nothing_else_is_said_of_it(tmp_path: Path) -> None:
    card, name = own_backbone(tmp_path / "mine"), str(tmp_path / "mine")
    silo = sps_silo(tmp_path / "silo", f'"{name}", "{tmp_path / "absent"}"')
    for request in (
        request_with(backbone=name, picture=2, features=5000),
        make_request(method="sps", settings={"backbone": name, "features": 4}, backbone_sha256=b"\1" * 32),
        request_with(backbone=str(tmp_path / "absent")),
    ):
        answer = silo.answer(request.encode())
        assert isinstance(answer, Refusal) and answer.reason is Reason.MALFORMED
        assert str(tmp_path) not in answer.message and card.sha256[:8] not in answer.message
    good = make_request(
        method="sps",
        settings={"backbone": name, "features": 0, "picture": 2},
        backbone_sha256=bytes.fromhex(card.sha256),
    )
    assert isinstance(silo.answer(good.encode()), SignedReleaseBytes)


def test_a_transform_for_other_images_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built, it would take gigabytes."""
    silo = sps_silo(tmp_path / "silo")
    monkeypatch.setattr(backbone, "_built", None)
    answer = silo.answer(request_with(backbone="scattering-16x4096x4096").encode())
    assert isinstance(answer, Refusal) and answer.reason is Reason.MALFORMED and "other images" in answer.message
