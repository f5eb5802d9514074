"""Area resampling: against a twin that counts small squares, and record by record."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpdd.common.models.resampling import area_resample, smaller

sizes = pytest.mark.parametrize(
    ("before", "after"),
    [((3, 2), (2, 2)), ((17, 40), (11, 24)), ((9, 8), (3, 8)), ((64, 43), (7, 43)), ((5, 5), (1, 3))],
)


def squares(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """Every pixel is cut into `height` rows, which tile the small image's rows exactly; then the same across."""
    count, channels, rows, columns = images.shape
    down = images.repeat(height, axis=2).reshape(count, channels, height, rows, columns).mean(3)
    return down.repeat(width, axis=3).reshape(count, channels, height, width, columns).mean(4)


@sizes
def test_a_pixel_is_the_mean_of_what_it_covers(before: tuple[int, int], after: tuple[int, int]) -> None:
    images = torch.rand(3, 2, *before, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    small = area_resample(images, *after)
    np.testing.assert_allclose(small.numpy(), squares(images.numpy(), *after), rtol=1e-12)
    single = area_resample(images.float(), *after)
    assert single.dtype == torch.float32 and torch.allclose(single, small.float(), rtol=1e-5)


def test_flat_images_stay_flat_and_images_of_the_size_stay_as_they_are() -> None:
    assert torch.allclose(area_resample(torch.full((1, 1, 300, 200), 0.3), 64, 43), torch.tensor(0.3), rtol=1e-6)
    images = torch.rand(2, 1, 8, 9)
    assert area_resample(images, 8, 9) is images


def test_fine_stripes_become_grey_and_do_not_alias() -> None:
    stripes = (torch.arange(96) % 2).float().expand(1, 1, 96, 96)
    small = area_resample(stripes, 32, 32)
    assert float((small - 0.5).abs().max()) < 0.17 and abs(float(small.mean()) - 0.5) < 1e-6
    assert torch.allclose(area_resample(stripes, 48, 48), torch.tensor(0.5))


def test_gradients_are_those_of_the_function() -> None:
    images = torch.rand(2, 1, 5, 7, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: area_resample(x, 2, 3), (images,))
    with torch.inference_mode():
        area_resample(torch.rand(1, 1, 11, 13), 4, 5)
    images = torch.rand(1, 1, 11, 13, requires_grad=True)
    area_resample(images, 4, 5).sum().backward()
    assert images.grad is not None, "also after matrices were first needed without gradients"


@sizes
def test_an_image_does_not_depend_on_its_neighbours(before: tuple[int, int], after: tuple[int, int]) -> None:
    batch = torch.rand(64, 3, *before)
    others = torch.full_like(batch, torch.nan)
    others[[1, 2]] = torch.tensor([torch.inf, 1e30])[:, None, None, None]
    kept = [0, 5, 31, 63]
    others[kept] = batch[kept]
    small = area_resample(batch, *after)
    assert torch.equal(area_resample(others, *after)[kept], small[kept])
    assert torch.equal(area_resample(batch.roll(1, 0), *after), small.roll(1, 0))


@pytest.mark.parametrize(
    ("size", "expected"),
    [((64, 64), (64, 64)), ((65, 65), (64, 64)), ((300, 200), (64, 43)), ((8, 4096), (8, 64)), ((9, 4096), (8, 64))],
)
def test_sizes_keep_their_proportions_as_far_as_they_can(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert smaller(*size, longest=64, shortest=8) == expected
    assert smaller(*reversed(size), longest=64, shortest=8) == tuple(reversed(expected))
