"""DSA augmentation: one kind per batch, each does what it says and no more, and strength 0 changes nothing."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest
import torch

from dpdd.server.evaluation.dsa import CHANGES, PUBLISHED, Strengths, augment
from dpdd.server.evaluation.learner_settings import AUGMENTATION_KINDS, AugmentationKind

NOTHING = Strengths(0.0, 0.0, 0.0, crop=0.0, cutout=0.0, flip=0.0, scale=1.0, rotate=0.0)
SHAPES = [(1, 28, 28), (3, 32, 32), (2, 17, 30)]
kinds = pytest.mark.parametrize("kind", AUGMENTATION_KINDS)


def images(count: int = 6, shape: tuple[int, int, int] = (3, 16, 16), seed: int = 1) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def changed(
    kind: AugmentationKind, pictures: torch.Tensor, seed: int = 0, strengths: Strengths = PUBLISHED
) -> torch.Tensor:
    return CHANGES[kind](pictures, strengths, torch.Generator().manual_seed(seed))


def test_there_is_a_change_for_every_kind() -> None:
    assert tuple(CHANGES) == AUGMENTATION_KINDS == get_args(AugmentationKind)


def test_strengths_are_the_published_ones() -> None:
    """`color` as their widths: brightness 1 (±0.5), saturation 2 (a factor from 0 to 2), contrast 0.5 (0.5 to 1.5)."""
    assert Strengths(0.5, 1.0, 0.5, 0.125, 0.5, 0.5, 1.2, 15.0) == PUBLISHED


@kinds
@pytest.mark.parametrize("shape", SHAPES)
def test_strength_zero_is_the_identity(kind: AugmentationKind, shape: tuple[int, int, int]) -> None:
    pictures = images(shape=shape)
    torch.testing.assert_close(changed(kind, pictures, strengths=NOTHING), pictures, atol=1e-5, rtol=1e-5)


@kinds
@pytest.mark.parametrize("shape", SHAPES)
def test_each_kind_changes_images_and_keeps_their_shape(kind: AugmentationKind, shape: tuple[int, int, int]) -> None:
    pictures = images(40, shape)
    before = pictures.clone()
    seen = changed(kind, pictures)
    assert seen.shape == pictures.shape and seen.dtype == pictures.dtype and torch.isfinite(seen).all()
    assert pictures.equal(before), "the synthetic set itself is left as it is"
    different = (seen - pictures).abs().flatten(1).amax(dim=1) > 1e-3
    if kind == "flip":
        assert 5 < int(different.sum()) < 35
    else:
        assert int(different.sum()) >= 35
    assert seen.equal(changed(kind, pictures)) and not seen.equal(changed(kind, pictures, seed=1))


def test_every_batch_gets_one_kind_and_all_kinds_come_about_equally_often() -> None:
    pictures, counts = images(5), Counter[str]()
    for seed in range(600):
        seen = augment(pictures, AUGMENTATION_KINDS, torch.Generator().manual_seed(seed))
        generator = torch.Generator().manual_seed(seed)
        kind = AUGMENTATION_KINDS[int(torch.randint(6, (), generator=generator))]
        assert seen.equal(CHANGES[kind](pictures, PUBLISHED, generator))
        counts[kind] += 1
    assert all(60 < counts[kind] < 140 for kind in AUGMENTATION_KINDS), counts


def test_kinds_that_are_left_out_do_not_come() -> None:
    """Of images that only a mirror image changes, none changes without `flip`."""
    ramp = torch.linspace(-1.0, 1.0, 16).expand(3, 1, 16, 16)
    generator = torch.Generator().manual_seed(0)
    flat = replace(NOTHING, flip=1.0)
    without = tuple(kind for kind in AUGMENTATION_KINDS if kind != "flip")
    for _ in range(50):
        torch.testing.assert_close(augment(ramp, without, generator, flat), ramp, atol=1e-5, rtol=0.0)
    assert augment(ramp, ("flip",), generator, flat).equal(ramp.flip(3))
    assert augment(ramp, (), generator) is ramp


@kinds
def test_images_of_a_batch_are_changed_by_different_amounts(kind: AugmentationKind) -> None:
    alike = images(1).expand(60, -1, -1, -1)
    different = {tuple(seen.flatten().tolist()) for seen in changed(kind, alike)}
    assert len(different) == 2 if kind == "flip" else len(different) > 20


def test_colour_is_a_line_per_image_around_its_grey_version() -> None:
    pictures = images(500)
    brightness = changed("color", pictures, strengths=replace(NOTHING, brightness=0.5)) - pictures
    torch.testing.assert_close(brightness, brightness[:, :1, :1, :1].expand_as(brightness), atol=1e-5, rtol=0.0)
    assert -0.5 <= float(brightness.min()) < -0.45 and 0.45 < float(brightness.max()) <= 0.5
    grey = pictures.mean(dim=1, keepdim=True)
    saturated = changed("color", pictures, strengths=replace(NOTHING, saturation=1.0))
    torch.testing.assert_close(saturated.mean(dim=1, keepdim=True), grey, atol=1e-5, rtol=0.0)
    factors = ((saturated - grey) * (pictures - grey)).sum((1, 2, 3)) / ((pictures - grey) ** 2).sum((1, 2, 3))
    assert 0.0 <= float(factors.min()) < 0.1 and 1.9 < float(factors.max()) <= 2.0
    contrast = changed("color", pictures, strengths=replace(NOTHING, contrast=0.5))
    torch.testing.assert_close(contrast.mean((1, 2, 3)), pictures.mean((1, 2, 3)), atol=1e-5, rtol=0.0)
    ratios = contrast.std((1, 2, 3)) / pictures.std((1, 2, 3))
    assert 0.5 <= float(ratios.min()) < 0.55 and 1.45 < float(ratios.max()) <= 1.5


def test_saturation_and_contrast_are_drawn_apart() -> None:
    """The last step keeps an image's mean, so what it scales by is seen in what saturation leaves alone: grey."""
    pictures = images(400)
    seen = changed("color", pictures, strengths=replace(NOTHING, saturation=1.0, contrast=0.5))
    grey, after = (each.mean(dim=1).flatten(1) for each in (pictures, seen))
    contrast = after.std(dim=1) / grey.std(dim=1)
    colour, left = ((each - each.mean(dim=1, keepdim=True)).flatten(1).std(dim=1) for each in (pictures, seen))
    saturation = left / colour / contrast
    assert abs(float(torch.corrcoef(torch.stack((saturation, contrast)))[0, 1])) < 0.3


def test_grey_images_have_no_saturation() -> None:
    pictures = images(shape=(1, 8, 8))
    only = replace(NOTHING, saturation=1.0)
    torch.testing.assert_close(changed("color", pictures, strengths=only), pictures, atol=1e-6, rtol=0.0)


def test_a_crop_is_a_shift_by_whole_pixels_with_zeros_from_outside() -> None:
    height, width = 16, 24
    pictures = images(300, (1, height, width))
    seen, found = changed("crop", pictures), torch.zeros(300, dtype=torch.int64)
    for down in range(-2, 3):
        for right in range(-3, 4):
            same = (seen == _shifted(pictures, down, right)).flatten(1).all(dim=1)
            assert same.any(), "every shift comes"
            found += same
    assert found.eq(1).all(), "and no other"


def _shifted(pictures: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """By loops, pixel for pixel."""
    moved = torch.zeros_like(pictures)
    height, width = pictures.shape[2:]
    for row in range(height):
        for column in range(width):
            if 0 <= row + down < height and 0 <= column + right < width:
                moved[..., row, column] = pictures[..., row + down, column + right]
    return moved


@pytest.mark.parametrize("side", [15, 16])
def test_a_cutout_is_one_rectangle_of_half_the_sides_which_may_stick_out(side: int) -> None:
    seen = changed("cutout", torch.ones(400, 2, side, side + 4))
    assert set(seen.unique().tolist()) == {0.0, 1.0} and seen[:, 0].equal(seen[:, 1])
    gone = seen[:, 0] == 0.0
    rows, columns = gone.any(dim=2), gone.any(dim=1)
    assert gone.equal(rows[:, :, None] & columns[:, None, :]), "a rectangle"
    for lines, whole in ((rows, round(side / 2 + 0.01)), (columns, round((side + 4) / 2 + 0.01))):
        sizes = lines.sum(dim=1)
        edges = (lines[:, 1:] != lines[:, :-1]).sum(dim=1)
        assert int(edges.max()) <= 2 and int(sizes.max()) == whole and whole // 2 <= int(sizes.min()) < whole


def test_half_of_the_images_are_mirrored() -> None:
    pictures = images(400, (1, 4, 5))
    seen = changed("flip", pictures)
    mirrored = (seen == pictures.flip(3)).all(dim=(1, 2, 3))
    assert (mirrored | (seen == pictures).all(dim=(1, 2, 3))).all()
    assert 140 < int(mirrored.sum()) < 260


def square(side: int = 48, half: int = 12) -> torch.Tensor:
    """A white square in the middle of a grey image."""
    picture = torch.zeros(1, 1, side, side)
    picture[..., side // 2 - half : side // 2 + half, side // 2 - half : side // 2 + half] = 1.0
    return picture


def test_scaling_goes_along_either_side_by_itself_as_far_as_stated() -> None:
    seen = changed("scale", square().expand(500, -1, -1, -1))[:, 0]
    tall = seen[:, :, 24].sum(dim=1) / 24.0
    wide = seen[:, 24, :].sum(dim=1) / 24.0
    for factors in (tall, wide):
        assert 1.0 / 1.2 - 0.02 < float(factors.min()) < 0.86 and 1.16 < float(factors.max()) < 1.22
    assert abs(float(torch.corrcoef(torch.stack((tall, wide)))[0, 1])) < 0.3
    torch.testing.assert_close(seen, seen.flip(2), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("shape", [(48, 48), (40, 80)])
def test_rotation_turns_either_way_without_a_shear(shape: tuple[int, int]) -> None:
    """By the second moments of a bar: its angle, and a length that stays."""
    height, width = shape
    down, right = torch.meshgrid(
        torch.arange(height) - (height - 1) / 2, torch.arange(width) - (width - 1) / 2, indexing="ij"
    )
    bar = torch.exp(-(((right / 10.0) ** 2) + (down / 3.0) ** 2) / 2.0)[None, None]
    seen = changed("rotate", bar.expand(400, -1, -1, -1))[:, 0]
    mass = seen.sum(dim=(1, 2))
    xx, yy, xy = ((seen * moment).sum(dim=(1, 2)) / mass for moment in (right**2, down**2, right * down))
    angles = torch.rad2deg(0.5 * torch.atan2(2.0 * xy, xx - yy))
    assert -15.5 < float(angles.min()) < -13.5 and 13.5 < float(angles.max()) < 15.5
    torch.testing.assert_close(xx + yy, (xx + yy)[:1].expand_as(xx), rtol=0.05, atol=0.0)
    torch.testing.assert_close(xx * yy - xy**2, (xx * yy - xy**2)[:1].expand_as(xx), rtol=0.1, atol=0.0)


def test_published_reach_of_crop_rounds_to_the_nearest_pixel() -> None:
    """An eighth of 28 is 3.5 pixels, taken as 4, as the authors do."""
    place = torch.zeros(1, 1, 28, 28)
    place[..., 14, 14] = 1.0
    seen = changed("crop", place.expand(500, -1, -1, -1))[:, 0].flatten(1).argmax(dim=1)
    assert {math.floor(int(index) / 28) - 14 for index in seen} == set(range(-4, 5))
