"""Images of no data at all: dead leaves, strokes and blobs; variations bend, mix and retouch what they are given.

>>> images = ShapesGenerator((1, 12, 12)).random(3, seed=1)
>>> images.shape, str(images.dtype)
((3, 1, 12, 12), 'uint8')
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.methods.private_evolution.generator import Generator
from dpdd.common.methods.private_evolution.specification import AT_ONCE
from dpdd.common.randomness import gaussians, uniforms

_POINTS, _STROKES, _PARTS = 12, 3, 4
_BEND, _TURN, _SHIFT, _ZOOM = 0.15, 0.5, 0.3, 0.3  # of a variation of strength 1
_RETOUCH, _COARSE = 0.35, 5

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class ShapesGenerator(Generator):
    """Leaves, strokes and blobs."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape

    def random(self, count: int, seed: int) -> Bytes:
        """Leaves, strokes and blobs in turn."""
        kinds = (_leaves, strokes, blobs)
        images = np.empty((count, *self.shape), np.uint8)
        for number, draw in enumerate(kinds):
            places = np.arange(number, count, len(kinds))
            for part, begin in enumerate(range(0, len(places), AT_ONCE)):
                chosen = places[begin : begin + AT_ONCE]
                images[chosen] = to_bytes(draw(len(chosen), self.shape, seed + part))
        return images

    def variation(self, records: Bytes, mates: Bytes, strength: float, seed: int) -> Bytes:
        """Bent, moved and turned; mixed with the mate, bent too; and retouched by something coarse."""
        images = np.empty_like(records)
        for part, begin in enumerate(range(0, len(records), AT_ONCE)):
            chosen = slice(begin, begin + AT_ONCE)
            bent = warped(to_floats(records[chosen]), strength, seed + 2 * part)
            other = warped(to_floats(mates[chosen]), strength, seed + 2 * part + 1)
            share = uniforms(seed + part, "private evolution shares", len(bent)).astype(np.float32)
            share = 0.5 * strength * share[:, None, None, None]
            images[chosen] = to_bytes(retouched(bent + share * (other - bent), strength, seed + part))
        return images


def to_bytes(images: Floats) -> Bytes:
    """From [0, 1] to bytes."""
    return np.rint(255.0 * np.clip(images, 0.0, 1.0)).astype(np.uint8)


def to_floats(images: Bytes) -> Floats:
    """And back."""
    return images.astype(np.float32) / np.float32(255.0)


def warped(images: Floats, strength: float, seed: int) -> Floats:
    """Every image bent by a smooth field, turned, zoomed and shifted; what comes in from outside is the edge."""
    count = len(images)
    drawn = torch.from_numpy(gaussians(seed, "private evolution moves", (6, count)).astype(np.float32)) * strength
    angle, zoom, shift = _TURN * drawn[0] * 0.5, torch.exp(_ZOOM * 0.5 * drawn[1:3]), _SHIFT * 0.5 * drawn[3:5]
    cosine, sine = torch.cos(angle), torch.sin(angle)
    rows = [
        torch.stack([cosine * zoom[0], -sine * zoom[1], shift[0]], 1),
        torch.stack([sine * zoom[0], cosine * zoom[1], shift[1]], 1),
    ]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    bend = _smooth(count, 2, images.shape[2:], seed, "private evolution bends").permute(0, 2, 3, 1)
    grid = grid + _BEND * strength * bend
    moved = functional.grid_sample(torch.from_numpy(images), grid, padding_mode="border", align_corners=False)
    return moved.numpy()


def retouched(images: Floats, strength: float, seed: int) -> Floats:
    """Brighter and darker here and there."""
    coarse = _smooth(len(images), images.shape[1], images.shape[2:], seed, "private evolution retouching").numpy()
    some = uniforms(seed, "private evolution retouched", len(images)) < 0.5
    amount = (_RETOUCH * strength * some).astype(np.float32)[:, None, None, None]
    return images + amount * coarse * (0.2 + 0.8 * (images > 0.05))


def _smooth(count: int, channels: int, size: tuple[int, ...], seed: int, purpose: str) -> Tensor:
    field = gaussians(seed, purpose, (count, channels, _COARSE, _COARSE)).astype(np.float32)
    return functional.interpolate(torch.from_numpy(field), size=list(size), mode="bicubic", align_corners=False)


def _leaves(count: int, shape: tuple[int, int, int], seed: int) -> Floats:
    return dead_leaves(count, *shape, seed)


def strokes(count: int, shape: tuple[int, int, int], seed: int) -> Floats:
    """A few thick curves on black, as a pen draws them (count, C, H, W)."""
    drawn = uniforms(seed, "private evolution strokes", count * _STROKES * 10).reshape(10, count, _STROKES)
    along = np.linspace(0.0, 1.0, _POINTS)
    weights = np.stack([(1.0 - along) ** 2, 2.0 * along * (1.0 - along), along**2])  # a curve through three points
    rows, columns = (np.einsum("knp,kt->npt", 1.2 * drawn[i : i + 3] - 0.1, weights) for i in (0, 3))
    thick = (0.02 + 0.08 * drawn[6])[..., None, None]
    u, v = _coordinates(shape)
    near = np.full((count, _STROKES, *shape[1:]), np.inf)
    for point in range(_POINTS):
        apart = (u - rows[..., point, None, None]) ** 2 + (v - columns[..., point, None, None]) ** 2
        np.minimum(near, apart, out=near)
    ink = np.clip((thick - np.sqrt(near)) * max(shape[1:]) + 0.5, 0.0, 1.0)
    ink *= (np.arange(_STROKES) < 1 + np.floor(_STROKES * drawn[7, :, :1]))[..., None, None]
    return _coloured(ink.max(1), shape, drawn[8:10, :, 0], seed)


def blobs(count: int, shape: tuple[int, int, int], seed: int) -> Floats:
    """Ellipses and boxes grown together, half of them with a left side like the right one (count, C, H, W)."""
    drawn = uniforms(seed, "private evolution blobs", count * _PARTS * 10).reshape(10, count, _PARTS, 1, 1)
    u, v = _coordinates(shape)
    v = np.where(drawn[0, :, :1] < 0.5, np.abs(v - 0.5) + 0.5, v)
    tall, wide = 0.05 + 0.4 * drawn[1], 0.05 + 0.35 * drawn[2]
    row, column = (u - (0.15 + 0.7 * drawn[3])) / tall, (v - (0.3 + 0.4 * drawn[4])) / wide
    power = np.where(drawn[5] < 0.5, 2.0, 8.0)
    edge = np.abs(row) ** power + np.abs(column) ** power
    inside = 1.0 / (1.0 + np.exp(np.clip(8.0 * (edge - 1.0), -30.0, 30.0)))
    inside *= np.arange(_PARTS)[:, None, None] < 1 + np.floor(_PARTS * drawn[6, :, :1])
    return _coloured(inside.max(1), shape, drawn[7:9, :, 0, 0, 0], seed)


def _coordinates(shape: tuple[int, int, int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    u, v = ((np.arange(side) + 0.5) / side for side in shape[1:])
    return u[:, None], v[None, :]


def _coloured(ink: NDArray[np.float64], shape: tuple[int, int, int], drawn: NDArray[np.float64], seed: int) -> Floats:
    """Ink in a colour on a ground: black where there is one channel."""
    count, channels = len(ink), shape[0]
    colour = np.repeat((0.4 + 0.6 * drawn[0])[:, None], channels, axis=1)
    ground = np.zeros((count, channels))
    if channels > 1:
        tints = uniforms(seed, "private evolution colours", 2 * count * channels).reshape(2, count, channels)
        colour, ground = 0.3 * colour + 0.7 * tints[0], 0.5 * drawn[1][:, None] + 0.5 * tints[1]
    images = ground[..., None, None] + ink[:, None] * (colour - ground)[..., None, None]
    return images.astype(np.float32)
