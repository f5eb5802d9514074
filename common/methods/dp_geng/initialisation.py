"""Where images begin: generated images that stand for the clusters of their class, several small ones in each image.

>>> points = torch.tensor([[0.0], [0.1], [5.0], [5.2], [9.0]])
>>> sorted(nearest_to_centres(points, 3, torch.Generator().manual_seed(0)).tolist())
[0, 2, 4]
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ROUNDS = 20


def nearest_to_centres(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The numbers of the points nearest to `count` centres of k-means; all, and some again, where there are fewer.

    Centres begin far apart: each next one is drawn with the squared distance to the nearest so far (k-means++).
    """
    if len(points) <= count:
        return torch.arange(count) % len(points)
    picks = [int(torch.randint(len(points), (), generator=generator))]
    nearest = (points - points[picks[0]]).square().sum(dim=1)
    for _ in range(count - 1):
        odds = nearest if float(nearest.sum()) > 0.0 else torch.ones_like(nearest)
        picks.append(int(torch.multinomial(odds.double(), 1, generator=generator)))
        nearest = torch.minimum(nearest, (points - points[picks[-1]]).square().sum(dim=1))
    centres = points[picks].clone()
    for _ in range(ROUNDS):
        member = functional.one_hot(torch.cdist(points, centres).argmin(dim=1), count).to(points)
        sizes = member.sum(dim=0)
        moved = torch.where(sizes[:, None] > 0.0, member.T @ points / sizes[:, None].clamp_min(1.0), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    distances = torch.cdist(points, centres)
    chosen = []
    for centre in range(count):
        chosen.append(int(distances[:, centre].argmin()))
        distances[chosen[-1]] = torch.inf  # each point stands for one centre
    return torch.tensor(chosen)


def assembled(pictures: Tensor, parts: int, size: tuple[int, int]) -> Tensor:
    """Groups of parts² pictures as one image each, row by row: (parts² N, C, H, W) to (N, C, H, W).

    The opposite of the matching family's `expand`; a picture is averaged down to its part. What is left over at the
    right and below, where `parts` does not divide a side, is grey.

    >>> assembled(torch.ones(8, 1, 6, 6), 2, (6, 6)).shape
    torch.Size([2, 1, 6, 6])
    """
    if parts == 1:
        return pictures
    height, width = size[0] // parts, size[1] // parts
    small = functional.interpolate(pictures, (height, width), mode="area")
    whole = torch.full((len(pictures) // parts**2, pictures.shape[1], *size), 0.5)
    for place in range(parts**2):
        row, column = divmod(place, parts)
        whole[:, :, row * height : (row + 1) * height, column * width : (column + 1) * width] = small[place :: parts**2]
    return whole
