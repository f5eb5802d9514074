"""Views: one for all images of a draw, the same everywhere, differentiable, and each kind does what it says."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpdd.common.synthesis.siamese_augmentation import CUT, LIGHT, ROTATION, SCALE, SHIFT, SiameseAugmentation

SEED = 11


def images(count: int = 4, channels: int = 2, size: int = 16, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(1), dtype=dtype)


def drawn(flips: bool = False, count: int = 60) -> list[SiameseAugmentation]:
    return [SiameseAugmentation.draw(SEED, number, flips) for number in range(count)]


def named(augmentation: SiameseAugmentation) -> str:
    """Which of the five kinds a view without a mirror is."""
    a, b, c, d, e, f = augmentation.affine
    if augmentation.cut is not None:
        return "cut"
    if augmentation.contrast != 1.0:
        return "light"
    if b != 0.0 or d != 0.0:
        return "rotation"
    if c != 0.0 or f != 0.0:
        return "shift"
    return "scale" if (a, e) != (1.0, 1.0) else "nothing"


KINDS = {named(augmentation): augmentation for augmentation in drawn()}


def test_all_five_kinds_are_drawn_about_equally_often_and_one_at_a_time() -> None:
    counts = dict.fromkeys(("rotation", "scale", "shift", "light", "cut"), 0)
    for augmentation in drawn(count=1000):
        counts[named(augmentation)] += 1  # a KeyError where nothing is done
        assert sum(augmentation.kind) == 1
    assert all(130 < count < 270 for count in counts.values()), counts


def test_views_go_as_far_as_stated_and_no_further() -> None:
    """A shift is a share of the image, which is 2 wide to the map of coordinates."""
    made = drawn(count=2000)
    shifts = [
        abs(value)
        for augmentation in made
        if named(augmentation) == "shift"
        for value in (augmentation.affine[2], augmentation.affine[5])
    ]
    angles = [
        math.degrees(math.asin(augmentation.affine[3])) for augmentation in made if named(augmentation) == "rotation"
    ]
    scales = [abs(math.log(value)) for w in made if named(w) == "scale" for value in (w.affine[0], w.affine[4])]
    contrasts = [abs(augmentation.contrast - 1.0) for augmentation in made if named(augmentation) == "light"]
    for found, most in ((shifts, 2 * SHIFT), (np.abs(angles), ROTATION), (scales, math.log(SCALE)), (contrasts, LIGHT)):
        assert 0.97 * most < max(found) <= most
    assert min(angles) < 0.0 < max(angles)
    for augmentation in made:
        if named(augmentation) == "rotation":  # neither a shear nor a mirror
            linear = np.array(augmentation.affine).reshape(2, 3)[:, :2]
            np.testing.assert_allclose(linear @ linear.T, np.eye(2), atol=1e-12)
            assert np.linalg.det(linear) == pytest.approx(1.0)


def test_nothing_drawn_is_the_identity() -> None:
    pictures = images()
    assert SiameseAugmentation()(pictures) is pictures and SiameseAugmentation().kind == (False, False, False)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_does_something_finite_and_keeps_the_shape(kind: str) -> None:
    pictures = images()
    seen = KINDS[kind](pictures)
    assert seen.shape == pictures.shape and seen.dtype == pictures.dtype
    assert torch.isfinite(seen).all()
    assert (seen - pictures).abs().flatten(1).amax(dim=1).min() > 0.01, "every image changes"


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("mirrored", [False, True])
def test_an_image_is_seen_alike_whatever_its_neighbours(kind: str, mirrored: bool) -> None:
    augmentation = KINDS[kind]
    if mirrored:
        augmentation = replace(
            augmentation, affine=(*(-value for value in augmentation.affine[:3]), *augmentation.affine[3:])
        )  # type: ignore[arg-type]
    pictures = images(7)
    together = augmentation(pictures)
    for index in range(7):
        assert torch.equal(augmentation(pictures[index : index + 1])[0], together[index])
    assert torch.equal(augmentation(pictures.flip(0)), together.flip(0))
    alike = augmentation(pictures[:1].expand(5, -1, -1, -1))
    assert torch.equal(alike, alike[:1].expand_as(alike))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_views_are_differentiable(kind: str) -> None:
    pictures = images(2, 1, 6, torch.float64).requires_grad_(True)
    assert torch.autograd.gradcheck(KINDS[kind], (pictures,))


def test_the_kinds_mean_what_they_say() -> None:
    pictures = images(3, 1, 16)
    shift = SiameseAugmentation(affine=(1.0, 0.0, 2.0 * 2 / 16, 0.0, 1.0, 0.0))(pictures)  # by two pixels
    torch.testing.assert_close(shift[..., :-2], pictures[..., 2:], atol=1e-5, rtol=0.0)
    assert (shift[..., -2:].abs() < 1e-5).all(), "what comes in is black"
    turned = SiameseAugmentation(affine=(0.0, -1.0, 0.0, 1.0, 0.0, 0.0))(pictures)
    torch.testing.assert_close(turned, pictures.rot90(1, (2, 3)), atol=1e-5, rtol=0.0)
    mirrored = SiameseAugmentation(affine=(-1.0, 0.0, 0.0, 0.0, 1.0, 0.0))(pictures)
    torch.testing.assert_close(mirrored, pictures.flip(3), atol=1e-5, rtol=0.0)
    lit = SiameseAugmentation(contrast=1.4, brightness=0.2)(pictures)
    means = pictures.mean(dim=(1, 2, 3))
    torch.testing.assert_close(lit.mean(dim=(1, 2, 3)), means + 0.2)
    torch.testing.assert_close(lit.std(dim=(1, 2, 3)), 1.4 * pictures.std(dim=(1, 2, 3)))
    torch.testing.assert_close(SiameseAugmentation(brightness=0.2)(pictures), pictures + 0.2)
    cut = SiameseAugmentation(cut=(0.5, 0.5))(pictures)
    gone = (cut == 0.0).flatten(1).sum(dim=1)
    assert gone.tolist() == [(CUT * 16) ** 2] * 3 and torch.equal(cut[..., :6, :], pictures[..., :6, :])


def test_a_cut_takes_something_of_images_of_any_size() -> None:
    for size in (4, 7, 8, 28):
        for place in (1e-3, 0.1, 0.49, 0.999):
            assert (SiameseAugmentation(cut=(place, 1.0 - place))(torch.ones(1, 1, size, size)) == 0.0).any()


def test_images_are_mirrored_only_where_asked_and_half_of_them() -> None:
    plain, flipped = drawn(False, 400), drawn(True, 400)
    mirrored = [one != other for one, other in zip(plain, flipped, strict=True)]
    assert 150 < sum(mirrored) < 250
    for one, other, turned in zip(plain, flipped, mirrored, strict=True):
        assert one.affine[0] > 0.0 and (other.affine[0] < 0.0) == turned
        sign = -1.0 if turned else 1.0
        assert other == replace(one, affine=(*(sign * value for value in one.affine[:3]), *one.affine[3:]))


def test_views_are_the_same_in_another_process_and_others_for_other_seeds() -> None:
    script = (
        "import json; from dataclasses import astuple;"
        "from dpdd.common.synthesis.siamese_augmentation import SiameseAugmentation;"
        f"print(json.dumps([astuple(SiameseAugmentation.draw({SEED}, n, True)) for n in range(20)]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    theirs = json.loads(said.stdout)
    mine = drawn(True, 20)
    for augmentation, (affine, contrast, brightness, cut) in zip(mine, theirs, strict=True):
        assert augmentation == SiameseAugmentation(
            tuple(affine), contrast, brightness, None if cut is None else tuple(cut)
        )
    assert all(
        augmentation != SiameseAugmentation.draw(SEED + 1, number, True) for number, augmentation in enumerate(mine)
    )
    assert len(set(mine)) == len(mine)
