"""A scattering transform as a public backbone: fixed wavelets, nothing trained, so no public data is needed.

The two-dimensional scattering transform of Bruna and Mallat (2013) with Morlet wavelets ψ_{j,θ} at `scales` J octaves
and `angles` L angles, and a Gaussian φ at scale 2^J; images are padded by reflection and convolved periodically:

    order 0: x * φ        order 1: |x * ψ_{j,θ}| * φ        order 2: ||x * ψ_{j,θ}| * ψ_{k,τ}| * φ  with k > j

each map sampled at every 2^J-th pixel. With J = 2 and L = 8 that is 1 + 16 + 64 = 81 maps of a channel:

>>> import torch
>>> images = torch.rand(5, 1, 28, 28)
>>> tuple(Scattering(28, 28, scales=2, angles=8)(images).shape)
(5, 1, 81, 7, 7)
>>> network = ScatteringNet(ScatteringArchitecture(channels=1, height=28, width=28)).eval()
>>> tuple(network.features(images).shape), [tuple(layer.shape) for layer in network.layers_of(images)]
((5, 3969), [(5, 17, 7, 7), (5, 64, 7, 7)])

How it is computed. On images this small, dense matrix products beat the FFT on a CPU. Convolution with a wavelet and
subsampling is block diagonal in the Fourier basis of one axis; a `Bank` goes to that basis (one product), applies all
wavelets of a scale to each block, dense along the other axis (one batched product), and comes back (one product). The
batch is the last axis throughout, so that nothing in between is transposed. It is exact, up to rounding; matrices grow
with the cube of the image's side, so it is for small images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpdd.common.errors import ConfigError
from dpdd.common.models.feature_network import FeatureNetwork, HookedBatchNorm, LayerHook, Normalisation
from dpdd.common.models.whitening import Whitening

LARGEST_SIDE = 96
"""Of images; beyond it the matrices would take gigabytes."""

MOST_ANGLES = 64

_CHUNK = 32
"""Images at a time: what is in between should stay in the processor's cache."""

_TINY = 1e-12
"""Next to the variance of a map (some are near 1e-5), or to a modulus: only guards against dividing by zero."""


@dataclass(frozen=True)
class ScatteringArchitecture:
    """Shape of a `ScatteringNet`.

    Parameters
    ----------
    channels, height, width
        Of the images; the network takes no others.
    scales, angles
        J and L: octaves and angles of the wavelets. Maps are sampled at every 2^J-th pixel.
    """

    channels: int
    height: int
    width: int
    scales: int = 2
    angles: int = 8
    kind: Literal["scattering"] = "scattering"

    def __post_init__(self) -> None:
        if min(self.channels, self.scales, self.angles) < 1:
            raise ConfigError(f"A scattering transform needs at least one channel, scale and angle, not {self}.")
        if self.scales > LARGEST_SIDE or self.angles > MOST_ANGLES:
            raise ConfigError(
                f"A scattering transform has at most {MOST_ANGLES} angles, and fewer scales than its images have "
                f"pixels, not {self.angles} and {self.scales}."
            )
        if not 2**self.scales < min(self.height, self.width) <= max(self.height, self.width) <= LARGEST_SIDE:
            raise ConfigError(
                f"A scattering transform of {self.scales} scales takes images with sides above {2**self.scales} and "
                f"up to {LARGEST_SIDE} pixels, not {self.height} x {self.width}."
            )

    @property
    def classes(self) -> int:
        """Outputs of the head: none, as nothing was trained."""
        return 0

    @property
    def maps(self) -> tuple[int, int, int]:
        """Maps of orders 0, 1 and 2 of one channel."""
        return 1, self.scales * self.angles, self.scales * (self.scales - 1) // 2 * self.angles**2

    @property
    def positions(self) -> int:
        """Pixels of each map."""
        return (self.height >> self.scales) * (self.width >> self.scales)


class ScatteringLayers(FeatureNetwork):
    """A feature network whose layers are a scattering transform's maps; what features it makes of them is its own.

    There are two hooked layers, maps of orders 0 and 1, and maps of order 2 (if J > 1), channel after channel, each map
    standardised by constants. `standardise` sets them; for the shipped networks, from images that are no data (see
    `make_scattering`). Compressing maps (logarithm, square root) is left out: it gave ridge regression
    half a point without noise, and nothing with noise. The head has no outputs: there are no public classes.
    """

    def __init__(self, canvas: ScatteringArchitecture, normalisation: Normalisation | None = None) -> None:
        channels = canvas.channels
        super().__init__(channels, normalisation or Normalisation((0.0,) * channels, (1.0,) * channels))
        self.scattering = deepcopy(_scattering(canvas.height, canvas.width, canvas.scales, canvas.angles))
        zeroth, first, second = canvas.maps
        self.split = [zeroth + first, second]
        self.norms = nn.ModuleList(HookedBatchNorm(channels * maps, eps=_TINY) for maps in self.split if maps)

    def standardised(self, layers: Sequence[Tensor], hook: LayerHook | None) -> Tensor:
        """Give all maps (N, channels x maps, height, width) of raw layers, standardised; show each layer to `hook`."""
        return torch.cat([norm(layer, hook) for norm, layer in zip(self.norms, layers, strict=True)], dim=1)

    def raw_layers(self, images: Tensor) -> list[Tensor]:
        """Give the maps of orders 0 and 1, and of order 2."""
        maps = self.scattering(self.normalise(images))
        return [layer.flatten(1, 2) for layer in maps.split(self.split, dim=2) if layer.shape[2]]

    @torch.no_grad()
    def standardise(self, images: Tensor) -> None:
        """Set the constants to each map's mean and variance over these images and all positions."""
        self.set_constants(self.raw_layers(images))

    @torch.no_grad()
    def set_constants(self, layers: Sequence[Tensor]) -> None:
        """Set the constants to each map's mean and variance in these raw layers."""
        for norm, layer in zip(self.norms, layers, strict=True):
            assert isinstance(norm, HookedBatchNorm) and norm.running_mean is not None and norm.running_var is not None
            variance, mean = torch.var_mean(layer.double(), dim=(0, 2, 3))
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(variance)


def check_shape(images: Tensor, channels: int, height: int, width: int) -> None:
    """ConfigError unless images have the one shape that a scattering transform is for."""
    if images.shape[1:] != (channels, height, width):
        raise ConfigError(
            f"This scattering transform is for images of shape {[channels, height, width]}, "
            f"not {list(images.shape[1:])}."
        )


class ScatteringNet(ScatteringLayers):
    """The network of a `ScatteringArchitecture`; its features are all coefficients at all positions, standardised."""

    def __init__(self, architecture: ScatteringArchitecture, normalisation: Normalisation | None = None) -> None:
        super().__init__(architecture, normalisation)
        self.architecture = architecture
        maps = architecture.channels * sum(architecture.maps)
        self.head = NoHead(maps * architecture.positions, architecture.classes)
        self.whitening = Whitening(maps, architecture.positions)

    def features(self, images: Tensor, hook: LayerHook | None = None) -> Tensor:
        """Give all standardised coefficients (N, channels x maps x positions), showing each layer to `hook`."""
        return self.standardised(self.raw_layers(images), hook).flatten(1)

    def raw_layers(self, images: Tensor) -> list[Tensor]:
        """Give the maps of orders 0 and 1, and of order 2, of images of the architecture's shape."""
        check_shape(images, self.architecture.channels, self.architecture.height, self.architecture.width)
        return super().raw_layers(images)


class NoHead(nn.Linear):
    """A head without outputs: it only says how many features there are."""

    def reset_parameters(self) -> None:
        """There is nothing to draw, of which torch would warn."""


class Scattering(nn.Module):
    """Images (N, C, H, W) to maps (N, C, 1 + JL + J(J-1)L²/2, H >> J, W >> J), paths in lexicographic order."""

    def __init__(self, height: int, width: int, *, scales: int, angles: int) -> None:
        super().__init__()
        self.scales, self.angles = scales, angles
        padded = tuple(((side >> scales) + 2) << scales for side in (height, width))
        more = [(after - side) // 2 for side, after in zip((height, width), padded, strict=True)]
        self.pad = nn.ReflectionPad2d((more[1], padded[1] - width - more[1], more[0], padded[0] - height - more[0]))
        self.shape = (height >> scales, width >> scales)
        wavelets = [[_morlet(padded, scale, turn, angles) for turn in range(angles)] for scale in range(scales)]
        self.banks = nn.ModuleDict(
            {
                f"{before}-{after}": Bank([_cropped(psi, before) for psi in wavelets[after]], 2 ** (after - before))
                for after in range(scales)
                for before in range(max(after, 1))
            }
        )
        gaussian = _gabor(padded, 0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0)
        for scale in range(scales):
            self.register_buffer(f"average{scale}", _averaging(_cropped(gaussian, scale), scales - scale), False)

    def forward(self, images: Tensor) -> Tensor:
        """Give the maps of images."""
        flat = images.reshape(-1, 1, *images.shape[2:])
        maps = torch.cat([self._transform(part) for part in flat.split(_CHUNK)])
        return maps.view(*images.shape[:2], -1, *self.shape)

    def _transform(self, images: Tensor) -> Tensor:
        """Give the maps of a few grey images; fields in between are (height, width, paths, images)."""
        count = len(images)
        x = self.pad(images).permute(2, 3, 1, 0)
        full = torch.cat([x, self.banks["0-0"](x)], dim=2)  # what is still at full resolution
        smooth = self._average(full, 0)
        zeroth, first = smooth[:, :1], [smooth[:, 1:]]
        second: list[list[Tensor]] = [[] for _ in range(self.scales)]
        for after in range(1, self.scales):
            field = self.banks[f"0-{after}"](full).unflatten(2, (self.angles, -1))
            smooth = self._average(field.flatten(2, 3), after).unflatten(1, (self.angles, -1))
            first.append(smooth[:, :, 0])
            second[0].append(smooth[:, :, 1:])
            here = field[:, :, :, 0]
            for later in range(after + 1, self.scales):
                twice = self._average(self.banks[f"{after}-{later}"](here), later)
                second[after].append(twice.unflatten(1, (self.angles, -1)))
        # Scale by scale, a path's second angle lies before its first: turn them round.
        ordered = [torch.stack(paths, 1).movedim(3, 1).flatten(1, 3) for paths in second if paths]
        return torch.cat([zeroth, *first, *ordered], dim=1).permute(2, 1, 0).view(count, -1, *self.shape)

    def _average(self, field: Tensor, scale: int) -> Tensor:
        """Low-pass a field of this scale's resolution, and sample it: (positions, paths, images)."""
        matrix: Tensor = getattr(self, f"average{scale}")
        return (matrix @ field.reshape(matrix.shape[1], -1)).view(-1, *field.shape[2:])


@lru_cache(maxsize=2)
def _scattering(height: int, width: int, scales: int, angles: int) -> Scattering:
    """A transform to copy: its matrices take longer to make than most networks take to load."""
    return Scattering(height, width, scales=scales, angles=angles)


class Bank(nn.Module):
    """Moduli of the convolutions with some wavelets, at every `stride`-th pixel, on periodic fields.

    Fields (height, width, paths, images) become (height / stride, width / stride, wavelets x paths, images).
    """

    analysis: Tensor
    wavelets: Tensor
    restoration: Tensor

    def __init__(self, wavelets: Sequence[NDArray[np.complex128]], stride: int) -> None:
        super().__init__()
        height, width = wavelets[0].shape
        self.shape = (height // stride, width // stride)
        before, after = _fourier_groups(height, stride)
        groups = before.shape[1]
        rows = (stride * np.arange(height // stride)[:, None] - np.arange(height)) % height
        columns = (stride * np.arange(width // stride)[:, None] - np.arange(width)) % width
        blocks = np.empty((groups, after.shape[2], 2, width // stride, len(wavelets), before.shape[2], width))
        for number, kernel in enumerate(wavelets):
            for part, values in enumerate((kernel.real, kernel.imag)):
                turned = np.einsum("rgb,rud,uga->gbad", after, values[rows], before, optimize=True)
                blocks[:, :, part, :, number] = turned[..., columns].transpose(0, 1, 3, 2, 4)
        matrices = {
            "analysis": before.reshape(height, -1).T,
            "wavelets": blocks.reshape(groups, -1, before.shape[2] * width),
            "restoration": after.reshape(height // stride, -1),
        }
        for name, matrix in matrices.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.float32)), False)

    def forward(self, field: Tensor) -> Tensor:
        """Give the moduli."""
        count = field.shape[2] * field.shape[3]
        spectrum = self.analysis @ field.reshape(len(field), -1)
        filtered = self.wavelets @ spectrum.view(len(self.wavelets), -1, count)
        parts = (self.restoration @ filtered.view(self.restoration.shape[1], -1)).view(self.shape[0], 2, -1)
        return _modulus(parts).view(*self.shape, -1, field.shape[3])


class _Modulus(torch.autograd.Function):
    """√(a² + b²) of a field (rows, 2, ...), with gradient 0 at 0."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor) -> Tensor:
        real, imaginary = parts.unbind(1)
        modulus = (real * real).addcmul_(imaginary, imaginary).sqrt_()
        ctx.save_for_backward(parts, modulus)
        return modulus

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        parts, modulus = ctx.saved_tensors
        result: Tensor = parts * (gradient / modulus.clamp_min(_TINY)).unsqueeze(1)
        return result


def _modulus(parts: Tensor) -> Tensor:
    result: Tensor = _Modulus.apply(parts)
    return result


def _fourier_groups(size: int, stride: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Orthonormal real Fourier bases before (size, groups, a) and after (size / stride, groups, b) subsampling.

    Frequencies that subsampling folds onto each other are in one group; groups are filled up with zeros.
    """
    small = size // stride

    def basis(length: int) -> list[list[NDArray[np.float64]]]:
        groups: list[list[NDArray[np.float64]]] = [[] for _ in range(small // 2 + 1)]
        for frequency in range(length // 2 + 1):
            angle = 2.0 * math.pi * frequency * np.arange(length) / length
            folded = min(frequency % small, -frequency % small)
            groups[folded].append(np.cos(angle))
            if 0 < 2 * frequency < length:
                groups[folded].append(np.sin(angle))
        return groups

    def packed(groups: list[list[NDArray[np.float64]]], length: int) -> NDArray[np.float64]:
        result = np.zeros((length, len(groups), max(map(len, groups))))
        for number, vectors in enumerate(groups):
            for place, vector in enumerate(vectors):
                result[:, number, place] = vector / np.linalg.norm(vector)
        return result

    return packed(basis(size), size), packed(basis(small), small)


def _gabor(
    shape: tuple[int, ...], deviation: float, angle: float, frequency: float, slant: float
) -> NDArray[np.complex128]:
    """A plane wave under a Gaussian, longer across than along the wave by 1 / slant; made periodic."""
    u, v = (np.arange(-2 * side, 3 * side) for side in shape)
    along = math.cos(angle) * u[:, None] + math.sin(angle) * v
    across = math.cos(angle) * v - math.sin(angle) * u[:, None]
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * deviation**2))
    wave = envelope * np.exp(1j * frequency * along) * slant / (2.0 * math.pi * deviation**2)
    folded: NDArray[np.complex128] = wave.reshape(5, shape[0], 5, shape[1]).sum((0, 2))
    return folded


def _morlet(shape: tuple[int, ...], scale: int, turn: int, angles: int) -> NDArray[np.complex128]:
    """The wavelet of a scale and an angle: a Gabor function, less as much of its envelope as gives it mean 0."""
    deviation, slant = 0.8 * 2**scale, 4.0 / angles
    angle = (int(angles - angles / 2 - 1) - turn) * math.pi / angles
    gabor = _gabor(shape, deviation, angle, 0.75 * math.pi / 2**scale, slant)
    envelope = _gabor(shape, deviation, angle, 0.0, slant)
    return gabor - gabor.sum() / envelope.sum() * envelope


def _cropped(kernel: NDArray[np.complex128], octaves: int) -> NDArray[np.complex128]:
    """The kernel on a grid coarser by some octaves: frequencies that the grid cannot hold are left out."""
    spectrum = np.fft.fft2(kernel).real
    for axis, side in enumerate(kernel.shape):
        half = side >> (octaves + 1)
        spectrum = np.take(spectrum, [*range(half), *range(side - half, side)], axis)
    return np.fft.ifft2(spectrum)


def _averaging(kernel: NDArray[np.complex128], octaves: int) -> Tensor:
    """The matrix (positions, pixels) of a convolution sampled at every 2^octaves-th pixel, without the outermost."""
    rows, columns = (
        ((np.arange(1, (side >> octaves) - 1) << octaves)[:, None] - np.arange(side)) % side for side in kernel.shape
    )
    matrix = kernel.real[rows[:, None, :, None], columns[None, :, None, :]]
    return torch.from_numpy(matrix.reshape(len(rows) * len(columns), -1).astype(np.float32))
