"""Pretraining on tiny synthetic data: it learns, resumes exactly, keeps its time, and says what it did."""

from __future__ import annotations

import dataclasses
import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone
from dpdd.common.models.training import Training, augment
from dpdd.scenarios.backbones import pretrain as module
from dpdd.scenarios.backbones.pretrain import PretrainSettings, pretrain, public_images
from dpdd.scenarios.cli import main as simulator

TINY = PretrainSettings(
    name="tiny",
    data="tinyimagenet32-gray28",
    widths=(4, 8),
    pool_after=(1, 2),
    epochs=3,
    batch_size=20,
    validation=0.2,
)


def synthetic(name: str, split: str) -> LabelledImages:
    """Give three classes that differ in colour and in the place of a bright block."""
    random = np.random.default_rng(len(split))
    size = 32 if name == "tinyimagenet32" else 28
    labels = np.arange(150, dtype=np.int64) % 3
    images = random.integers(0, 60, (150, 3, size, size), dtype=np.uint8)
    for index, label in enumerate(labels):
        images[index, label, 8 * label : 8 * label + 10] += 150
    return LabelledImages(images if size == 32 else images[:, :1], labels, ("a", "b", "c"))


@pytest.fixture(autouse=True)
def tiny_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "load", synthetic)


def weights(folder: Path) -> bytes:
    return (folder / "tiny.safetensors").read_bytes()


def test_it_learns_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = dataclasses.replace(TINY, epochs=8)
    result = pretrain(settings, tmp_path, probes=("fashion-mnist",))
    assert result.card.provenance.accuracy > 0.8
    assert result.card == backbone.load(tmp_path / "tiny").card
    assert result.card.architecture.height == 28 and result.card.classes == 3
    lines = (tmp_path / "tiny.log").read_text().splitlines()
    assert lines[0] == settings.command()
    epochs = [line for line in lines if line.startswith("epoch")]
    assert [line.endswith(" left") for line in epochs] == [True] * 7 + [False]
    assert "linear probe on fashion-mnist" in lines[-1] and result.card.sha256 in lines[-2]
    out, err = capfd.readouterr()
    assert out == "" and err.splitlines() == lines


@pytest.mark.parametrize(
    "change", [{}, {"optimizer": "adamw", "learning_rate": 0.01}, {"ema": 0.9}, {"depth": 10}, {"crop": 24}]
)
def test_resuming_gives_the_weights_of_an_uninterrupted_run(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dataclasses.replace(TINY, **change)
    pretrain(settings, tmp_path / "whole", quiet=True)

    run_epoch = Training.run_epoch

    def dies_in_epoch_three(self: Training, *arguments: Any) -> tuple[float, int]:
        if self.epoch == 2:
            raise KeyboardInterrupt
        return run_epoch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "run_epoch", dies_in_epoch_three)
        with pytest.raises(KeyboardInterrupt):
            pretrain(settings, tmp_path / "halves", quiet=True)
    assert not (tmp_path / "halves" / "tiny.safetensors").exists()
    torch.rand(7)  # the state of torch's own generator must not matter
    pretrain(settings, tmp_path / "halves", quiet=True, resume=True)
    assert weights(tmp_path / "whole") == weights(tmp_path / "halves")
    assert "resumed after epoch 2" in (tmp_path / "halves" / "tiny.log").read_text()

    pretrain(settings, tmp_path / "halves", quiet=True, resume=True)
    assert weights(tmp_path / "whole") == weights(tmp_path / "halves"), "a finished run stays as it is"


def test_a_run_can_begin_with_the_weights_of_another(tmp_path: Path) -> None:
    first = pretrain(TINY, tmp_path / "first", quiet=True)
    start = str(tmp_path / "first" / "tiny")
    more = dataclasses.replace(TINY, start=start, seed=1, epochs=1, learning_rate=1e-12, momentum=1e-12)
    second = pretrain(more, tmp_path / "second", quiet=True)
    for name, tensor in first.network.named_parameters():
        np.testing.assert_allclose(second.network.get_parameter(name).detach(), tensor.detach(), atol=1e-6)
    assert second.card.provenance.command == f"{TINY.command()} && {more.command()}"
    assert f"--start {start}" in more.command()

    with pytest.raises(ConfigError, match="was trained from tinyimagenet32-gray28, not from tinyimagenet32:"):
        pretrain(dataclasses.replace(more, data="tinyimagenet32"), tmp_path / "other", quiet=True)
    with pytest.raises(ConfigError, match="another shape"):
        pretrain(dataclasses.replace(more, widths=(4, 4)), tmp_path / "other", quiet=True)


def test_the_held_out_images_do_not_depend_on_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out: list[torch.Tensor] = []
    plain = module.accuracy

    def accuracy(network: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
        held_out.append(images)
        return plain(network, images, labels)

    monkeypatch.setattr(module, "accuracy", accuracy)
    for seed in (0, 1):
        pretrain(dataclasses.replace(TINY, epochs=1, seed=seed), tmp_path / str(seed), quiet=True)
    assert all(torch.equal(images, held_out[0]) for images in held_out)


def test_each_epoch_has_its_own_order_and_augmentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[torch.Tensor] = []
    plain = Training._step

    def step(self: Training, batch: torch.Tensor, labels: torch.Tensor) -> float:
        batches.append(batch)
        return plain(self, batch, labels)

    monkeypatch.setattr(Training, "_step", step)
    for seed in (0, 1):
        pretrain(dataclasses.replace(TINY, epochs=2, seed=seed), tmp_path, quiet=True)
    first_of_each = batches[:: len(batches) // 4]
    assert len(first_of_each) == 4
    assert not any(torch.equal(a, b) for i, a in enumerate(first_of_each) for b in first_of_each[:i])


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    pretrain(dataclasses.replace(TINY, epochs=1), tmp_path, quiet=True)
    with pytest.raises(ConfigError, match="its seed is 0, now 1"):
        pretrain(dataclasses.replace(TINY, epochs=1, seed=1), tmp_path, quiet=True, resume=True)


def test_minutes_end_the_run_with_the_rate_annealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    plain = Training._step

    def step(self: Training, *arguments: Any) -> float:
        loss = plain(self, *arguments)
        rates.append(self.optimizer.param_groups[0]["lr"])
        return loss

    monkeypatch.setattr(Training, "_step", step)
    started = time.monotonic()
    pretrain(dataclasses.replace(TINY, epochs=100_000, minutes=0.02), tmp_path, quiet=True)
    assert time.monotonic() - started < 30
    assert max(rates) > 0.5 * TINY.learning_rate and rates[-1] < 0.3 * TINY.learning_rate
    assert "progress 100.0%" in (tmp_path / "tiny.log").read_text()


def test_quiet_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pretrain(dataclasses.replace(TINY, epochs=1), tmp_path, quiet=True, log=tmp_path / "logs" / "a.log")
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "logs" / "a.log").read_text().startswith("dpdd-sim pretrain")


def test_gray_images_are_small_and_gray() -> None:
    images, labels, classes = public_images("tinyimagenet32-gray28")
    assert images.shape == (150, 1, 28, 28) and images.dtype == torch.uint8 and classes == 3
    assert public_images("tinyimagenet32")[0].shape == (150, 3, 32, 32)
    # Class 1 has a green block, the brightest to the eye, in rows 8 to 17 of 32.
    green = images[labels == 1].float().mean((0, 1, 3))
    assert 7 <= int(green.argmax()) < 16 and float(green.max()) > 0.587 * 150


def test_augmentation_shifts_and_mirrors_whole_images() -> None:
    row = torch.arange(6, dtype=torch.uint8).expand(200, 1, 6, 6)
    moved = augment(row, padding=1, flip=True, generator=torch.Generator().manual_seed(0))
    seen = {tuple(image[0, 0].tolist()) for image in moved}
    right = [(0, 0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 5)]
    assert seen == {*right, *(tuple(reversed(line)) for line in right)}
    still = augment(row, padding=0, flip=False, generator=torch.Generator())
    assert torch.equal(still, row)


def test_cut_outs_are_squares_of_the_image_anywhere_in_it() -> None:
    image = torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6)
    cut = augment(image.expand(500, -1, -1, -1), 0, flip=False, generator=torch.Generator().manual_seed(0), side=4)
    seen = {tuple(each.flatten().tolist()) for each in cut}
    assert seen == {tuple(image[0, 0, y : y + 4, x : x + 4].flatten().tolist()) for y in range(3) for x in range(3)}


def test_training_ends_on_whole_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = Training._step

    def step(self: Training, batch: torch.Tensor, labels: torch.Tensor) -> float:
        sizes.append(batch.shape[-1])
        return plain(self, batch, labels)

    monkeypatch.setattr(Training, "_step", step)
    pretrain(dataclasses.replace(TINY, epochs=4, crop=16, crop_until=0.75), tmp_path, quiet=True)
    assert sizes == sorted(sizes) and set(sizes) == {16, 28}
    assert sizes.count(16) == 0.75 * len(sizes)


def test_the_recorded_command_gives_the_same_weights(tmp_path: Path) -> None:
    settings = dataclasses.replace(TINY, flip=False, schedule="cosine", label_smoothing=0.1, seed=5)
    card = pretrain(settings, tmp_path / "a", quiet=True).card
    words = shlex.split(card.provenance.command)
    assert words[:2] == ["dpdd-sim", "pretrain"]
    assert simulator([*words[1:], "--folder", str(tmp_path / "b"), "--quiet"]) == 0
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


@pytest.mark.parametrize(
    "change",
    [
        {"data": "imagenet"},
        {"epochs": 0},
        {"minutes": 0.0},
        {"validation": 1.0},
        {"momentum": 0.0},
        {"learning_rate": float("nan")},
        {"name": "a/b"},
        {"ema": 1.0},
        {"crop_padding": -1},
        {"crop": 0},
        {"crop_until": 1.5},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(TINY, **change)


def test_too_few_images_for_a_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not fill one batch of 500"):
        pretrain(dataclasses.replace(TINY, batch_size=500), tmp_path, quiet=True)
