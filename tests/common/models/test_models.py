"""Models: layers_of against hooks, and backbones that survive a round trip but no tampering."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from dpdd.common.errors import ConfigError, DpddError, IntegrityError
from dpdd.common.models import backbone, checkpoint
from dpdd.common.models.backbone import Architecture, Provenance
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.feature_network import FeatureNetwork, Normalisation
from dpdd.common.models.resampling import area_resample
from dpdd.common.models.wrn import WideResNetArchitecture

CONVNET = ConvNetArchitecture(channels=1, height=14, width=14, classes=5, widths=(4, 8, 8), pool_after=(1, 3))
WRN = WideResNetArchitecture(channels=3, height=16, width=16, classes=5, depth=10, widen=1)
PROVENANCE = Provenance(public_data="noise", licence="none", accuracy=0.2, command="none", seed=3)
architectures = pytest.mark.parametrize("architecture", [CONVNET, WRN], ids=["convnet", "wrn"])


def trained(architecture: Architecture) -> FeatureNetwork:
    """Give a network whose running statistics and affine parameters are nothing special."""
    torch.manual_seed(0)
    normalisation = Normalisation((0.4,) * architecture.channels, (0.3,) * architecture.channels)
    network = backbone.build(architecture, normalisation)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias, 0, 0.3)
    for _ in range(5):
        network(images(architecture))
    return network.eval()


def images(architecture: Architecture, count: int = 6) -> Tensor:
    return torch.rand(count, architecture.channels, architecture.height, architecture.width)


def one_sentence(error: DpddError) -> bool:
    text = str(error)
    return "\n" not in text and text.endswith(".") and len(text) < 300


@architectures
def test_layer_hooks_see_what_torch_hooks_see(architecture: Architecture) -> None:
    network = trained(architecture)
    batch = images(architecture)
    expected: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.BatchNorm2d)
        assert module.running_mean is not None and module.running_var is not None
        mean, var = (v.view(1, -1, 1, 1) for v in (module.running_mean, module.running_var))
        expected.append((inputs[0] - mean) / torch.sqrt(var + module.eps))

    handles = [
        module.register_forward_pre_hook(hook) for module in network.modules() if isinstance(module, nn.BatchNorm2d)
    ]
    with torch.no_grad():
        network(batch)
    for handle in handles:
        handle.remove()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            layers = network.layers_of(batch)
        assert len(layers) == len(expected) == len(network.layer_channels)
        assert [layer.shape[1] for layer in layers] == list(network.layer_channels)
        for layer, wanted in zip(layers, expected, strict=True):
            torch.testing.assert_close(layer, wanted, rtol=1e-4, atol=1e-4)


@architectures
def test_layer_hooks_change_neither_features_nor_running_statistics(architecture: Architecture) -> None:
    network = trained(architecture)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    batch = images(architecture)
    shapes: list[torch.Size] = []
    hooked = network.features(batch, hook=lambda layer: shapes.append(layer.shape))
    torch.testing.assert_close(hooked, network.features(batch), rtol=1e-4, atol=1e-5)
    assert len(shapes) == len(network.layer_channels)
    torch.testing.assert_close(network(batch), network.head(hooked), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_gradients_reach_the_images_through_taps() -> None:
    network = trained(CONVNET).requires_grad_(False)
    batch = images(CONVNET).requires_grad_()
    sum(layer.square().mean() for layer in network.layers_of(batch)).backward()  # type: ignore[union-attr]
    assert batch.grad is not None and float(batch.grad.abs().min(0).values.max()) > 0


def test_taps_need_eval_mode() -> None:
    with pytest.raises(RuntimeError, match="eval"):
        trained(CONVNET).train().layers_of(images(CONVNET))


def test_cost_of_taps_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    network = trained(ConvNetArchitecture(1, 28, 28, 10, (16, 32, 64), (1, 2)))
    batch = torch.rand(64, 1, 28, 28)

    def best(run: Any) -> float:
        times = []
        for _ in range(8):
            started = time.perf_counter()
            run(batch)
            times.append(time.perf_counter() - started)
        return min(times)

    with torch.no_grad():
        ratio = best(network.layers_of) / best(network.features)
    with capsys.disabled():
        print(f"\ntaps cost {ratio:.2f} times a plain forward pass")
    assert ratio > 0


@architectures
def test_round_trip(architecture: Architecture, tmp_path: Path) -> None:
    network = trained(architecture)
    card = backbone.save(tmp_path / "folder" / "mine.v1", network, PROVENANCE)
    assert {file.name for file in (tmp_path / "folder").iterdir()} == {"mine.v1.json", "mine.v1.safetensors"}
    for path in ("mine.v1", "mine.v1.json", "mine.v1.safetensors"):
        loaded = backbone.load(tmp_path / "folder" / path, sha256=card.sha256)
        assert loaded.card == card and loaded.card.architecture == architecture and card.name == "mine.v1"
    assert not loaded.network.training
    assert not any(parameter.requires_grad for parameter in loaded.network.parameters())
    assert all(tensor.dtype == torch.float32 for tensor in loaded.network.parameters())
    for name, tensor in network.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            stored = tensor.half().float() if tensor.ndim > 1 else tensor
            assert torch.equal(loaded.network.state_dict()[name], stored)
    again = backbone.save(tmp_path / "again", loaded.network, PROVENANCE)
    assert again.sha256 == card.sha256, "what was loaded must be stored as the same bytes"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    backbone.save(tmp_path / "mine", trained(CONVNET), PROVENANCE)
    return tmp_path / "mine"


def refuse(path: Path, match: str, kind: type[DpddError] = IntegrityError) -> None:
    with pytest.raises(kind, match=match) as caught:
        backbone.load(path)
    assert one_sentence(caught.value), str(caught.value)


@pytest.mark.parametrize("position", [3, 30, 900, -1])
def test_an_altered_byte_of_the_weights_is_refused(saved: Path, position: int) -> None:
    file = saved.with_suffix(".safetensors")
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)
    refuse(saved, "SHA-256")


def _set(card: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        card = card[parent]
    card[last] = value


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("sha256", "0" * 64, "SHA-256"),
        ("architecture.widths", [4, 8, 9], "another architecture"),
        ("architecture.pool_after", [2, 3], "another architecture"),
        ("architecture.pool_after", [9], "pool_after"),
        ("architecture.kind", "transformer", "architecture"),
        ("normalisation.mean", [0.5], "another architecture or input normalisation"),
        ("normalisation.std", [0.0], "positive"),
        ("normalisation", None, "normalisation"),
        ("provenance.accuracy", "high", "provenance.accuracy"),
        ("provenance.seed", "3", "entries"),
        ("provenance.note", "hello", "entries"),
        ("extra", 1, "entries"),
    ],
)
def test_an_altered_card_is_refused(saved: Path, path: str, value: Any, match: str) -> None:
    file = saved.with_suffix(".json")
    card = json.loads(file.read_text())
    _set(card, path, value)
    file.write_text(json.dumps(card))
    refuse(saved, match)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_a_card_that_is_no_card_is_refused(saved: Path, text: str) -> None:
    saved.with_suffix(".json").write_text(text)
    refuse(saved, "card")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.pop("head.bias"), "'head.bias' is missing"),
        (lambda t: t.update(more=torch.ones(1)), "'more' is unknown"),
        (lambda t: t.update({"head.bias": torch.ones(4)}), r"shape \[4\], not floats of shape \[5\]"),
        (lambda t: t.update({"head.bias": torch.ones(5, dtype=torch.int64)}), "int64"),
        (lambda t: t.update({"head.bias": torch.full((5,), torch.nan)}), "NaN"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(saved: Path, change: Any, match: str) -> None:
    """Someone rewrote the weights, and put the right SHA-256 and header beside them."""
    file = saved.with_suffix(".safetensors")
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    tensors = safetensors.load(content)
    change(tensors)
    _replace(saved, safetensors.save(tensors, json.loads(content[8 : 8 + length])["__metadata__"]))
    refuse(saved, match)


def test_weights_that_are_no_safetensors_are_refused(saved: Path) -> None:
    for content in (b"", b"\x80\x04pickle", b"\xff" * 100):
        _replace(saved, content)
        refuse(saved, "no safetensors")


def _replace(saved: Path, content: bytes) -> None:
    saved.with_suffix(".safetensors").write_bytes(content)
    card = json.loads(saved.with_suffix(".json").read_text())
    card["sha256"] = hashlib.sha256(content).hexdigest()
    saved.with_suffix(".json").write_text(json.dumps(card))


def test_missing_backbones_are_named(saved: Path) -> None:
    refuse(saved.with_name("other"), "no backbone", ConfigError)
    saved.with_suffix(".json").unlink()
    refuse(saved, "mine.json is missing")
    with pytest.raises(ConfigError, match=r"shipped name \("):
        backbone.load("no-such-backbone")


def test_another_backbone_than_asked_for_is_refused(saved: Path) -> None:
    with pytest.raises(IntegrityError, match="was asked for") as caught:
        backbone.load(saved, sha256="ab" * 32)
    assert one_sentence(caught.value)


def test_backbones_ship_for_grey_and_colour_with_and_without_public_data() -> None:
    assert {"gray28", "rgb32", "scatter28", "scatter32"} <= set(backbone.available())


@pytest.mark.parametrize("name", backbone.available())
def test_shipped_backbones_load(name: str) -> None:
    loaded = backbone.load(name)
    trained_on_something = not name.startswith("scatter")
    assert loaded.card.name == name and loaded.card.classes == (200 if trained_on_something else 0)
    assert (loaded.card.provenance.accuracy > 0.2) == trained_on_something
    assert loaded.card.provenance.public_data.startswith("none") != trained_on_something
    batch = images(loaded.card.architecture, 2)
    least = 4 if trained_on_something else 2
    assert len(loaded.network.layers_of(batch)) == len(loaded.network.layer_channels) >= least
    assert loaded.network(batch).shape == (2, loaded.card.classes) and torch.isfinite(loaded.network(batch)).all()
    features = loaded.network.features(batch)
    assert features.shape == (2, loaded.network.head.in_features) and torch.isfinite(features).all()
    assert loaded.network.whitening(features, 64).shape == (2, 64)


@architectures
def test_images_beyond_one_and_a_half_times_the_size_are_made_small_inside(architecture: Architecture) -> None:
    network, side = trained(architecture), architecture.height
    large = torch.rand(3, architecture.channels, 4 * side, 3 * side)
    seen = area_resample(large, 3 * side // 2, round(9 * side / 8))
    assert torch.equal(network.features(large), network.features(seen))
    assert not torch.allclose(network.features(seen), network.features(area_resample(seen, side, side)), rtol=1e-2)
    ribbon = torch.rand(3, architecture.channels, 8 * side, side)
    assert torch.equal(network.features(ribbon), network.features(area_resample(ribbon, 3 * side // 2, side)))
    assert network.features(seen[:, :, :8, :8]).shape == network.features(seen).shape, "crops, as in training"


def test_which_images_a_trained_network_takes() -> None:
    loaded = backbone.load("rgb32")
    for shape in ((3, 32, 32), (3, 33, 200), (3, 4096, 32)):
        loaded.check_images(shape)
    for shape, match in (
        ((3, 31, 64), "rgb32 takes images from 32 x 32 pixels up, not 31 x 64"),
        ((3, 64, 8), "not 64 x 8"),
        ((1, 64, 64), "rgb32 is for images of 3 channels"),
        ((14,), "not for records of shape"),
    ):
        with pytest.raises(ConfigError, match=match):
            loaded.check_images(shape)


@pytest.mark.parametrize("depth", [4, 9, 11, 17])
def test_impossible_depths_are_refused(depth: int) -> None:
    with pytest.raises(ConfigError, match="6n"):
        WideResNetArchitecture(channels=3, height=32, width=32, classes=10, depth=depth, widen=1)


def test_wide_resnet_has_the_published_size() -> None:
    """WRN-16-4 and WRN-40-2 of the paper have 2.7 and 2.2 million parameters on CIFAR-10."""
    for depth, widen, millions in ((16, 4, 2.7), (40, 2, 2.2)):
        network = backbone.build(WideResNetArchitecture(3, 32, 32, 10, depth, widen))
        assert round(sum(p.numel() for p in network.parameters()) / 1e6, 1) == millions


def test_a_checkpoint_is_whole_or_refused(tmp_path: Path) -> None:
    assert checkpoint.read(tmp_path, {"a": 1}) is None
    for value in (1.0, 2.0):
        checkpoint.write(tmp_path, {"a": 1}, {"t": torch.full((3,), value)}, {"epoch": value})
    assert len(list(tmp_path.iterdir())) == 2, "the older tensors are removed"
    state = checkpoint.read(tmp_path, {"a": 1})
    assert state is not None and state[0]["t"].tolist() == [2.0] * 3 and state[1] == {"epoch": 2.0}
    with pytest.raises(ConfigError, match="its a is 1, now 2"):
        checkpoint.read(tmp_path, {"a": 2})
    file = next(tmp_path.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="altered"):
        checkpoint.read(tmp_path, {"a": 1})
    file.unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        checkpoint.read(tmp_path, {"a": 1})
