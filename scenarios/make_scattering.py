"""Build the backbones `scatter28` and `scatter32`: fixed wavelets, standardised on images that no camera took.

``python -m dpdd.scenarios.make_scattering`` writes them; with ``--check`` it only compares. A scattering transform has
nothing to train, but its maps differ in scale by orders of magnitude, and SPS wants them standardised. The mean and
deviation of each map come from *dead leaves*, the classical random model of natural images: discs of random size,
place and colour that hide each other. They are drawn from a public seed, so no dataset is involved, and
anyone gets the same files (the same to the last bit on the same machine; ``--check`` allows for rounding on others).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.errors import DataError, DpddError
from dpdd.common.files import shown
from dpdd.common.models import backbone
from dpdd.common.models.backbone import Provenance
from dpdd.common.models.scattering import ScatteringArchitecture, ScatteringNet
from dpdd.common.models.tapped import FeatureNet
from dpdd.common.randomness import uniforms

SHELF = Path(backbone.__file__).parent / "weights"
BACKBONES = {
    "scatter28": ScatteringArchitecture(channels=1, height=28, width=28),
    "scatter32": ScatteringArchitecture(channels=3, height=32, width=32),
}
IMAGES, SEED = 3000, 0
PROVENANCE = Provenance(
    public_data="none (random dead leaves, drawn in code)",
    licence="none needed",
    accuracy=0.0,
    command="python -m dpdd.scenarios.make_scattering",
    seed=SEED,
)

_LEAVES = 100
_SMALLEST = 1.0  # radius in pixels


def dead_leaves(count: int, channels: int, height: int, width: int, seed: int) -> NDArray[np.float32]:
    """Random images (count, channels, height, width) in [0, 1]: discs on top of each other.

    Radii have density 1/r³ from a pixel to the image's larger side, which makes images look alike at all scales, as
    photographs do. How many leaves fall is drawn for each image, so that some images are a few shapes on an empty
    ground and some are full; every other ground is black, as in scans. Colours are a grey and a weaker tint.

    >>> images = dead_leaves(3, 1, 8, 8, seed=1)
    >>> images.shape, bool(images.min() >= 0 and images.max() <= 1)
    ((3, 1, 8, 8), True)
    """
    drawn = uniforms(seed, f"dead leaves {height} {width}", count * _LEAVES * 7).reshape(7, _LEAVES, count)
    largest = float(max(height, width))
    radii = _SMALLEST / np.sqrt(1.0 - drawn[0] * (1.0 - (_SMALLEST / largest) ** 2))
    rows, columns = ((2.0 * drawn[i] - 0.5) * side for i, side in ((1, height), (2, width)))
    falling = np.arange(_LEAVES)[:, None] < _LEAVES * uniforms(seed, "dead leaves that fall", count)
    tint = 0.5 * (drawn[4:7] - drawn[4:7].mean(0)) if channels > 1 else np.zeros((1, _LEAVES, count))
    colours = np.clip(drawn[3] + tint, 0.0, 1.0)
    u, v = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
    images = np.zeros((channels, count, height, width), dtype=np.float32)
    images[:, ::2] = colours[:, 0, ::2, None, None]
    for leaf in range(1, _LEAVES):
        row, column, radius, colour = (
            values[..., leaf, :, None, None].astype(np.float32) for values in (rows, columns, radii, colours)
        )
        inside = np.clip(radius - np.sqrt((u - row) ** 2 + (v - column) ** 2) + 0.5, 0.0, 1.0)  # soft edges
        inside *= falling[leaf, :, None, None]
        images += inside * (colour - images)
    return np.ascontiguousarray(images.swapaxes(0, 1))


def network(architecture: ScatteringArchitecture) -> ScatteringNet:
    """Make the network, standardised on dead leaves."""
    made = ScatteringNet(architecture).eval()
    leaves = dead_leaves(IMAGES, architecture.channels, architecture.height, architecture.width, SEED)
    made.standardise(torch.from_numpy(leaves))
    with torch.inference_mode():
        made.whitening.fit(torch.cat([made.features(part) for part in torch.from_numpy(leaves).split(100)]))
    return made


def check(name: str, folder: Path) -> None:
    """Raise `DataError` unless `folder` holds the backbone that a rebuild would give."""
    held = backbone.load(folder / name)
    same = held.card.architecture == BACKBONES[name] and held.card.provenance == PROVENANCE
    if not same or not _alike(held.network, network(BACKBONES[name])):
        raise DataError(f"{shown(folder / name)}: it is not what dead leaves give; build it again")


def _alike(one: FeatureNet, other: FeatureNet) -> bool:
    """Whether two networks are the same but for rounding.

    Eigenbases are defined up to signs, and turns among equal eigenvalues, and lie in the file in half precision: what
    they stand for is compared, the covariances of maps and of positions.
    """
    states = [dict(network.state_dict()) for network in (one, other)]
    for kind in ("maps", "positions"):
        covariances = []
        for state in states:
            basis, variances = state.pop(f"whitening.{kind}_basis"), state.pop(f"whitening.{kind}_variances")
            covariances.append(basis * variances @ basis.T)
        if float((covariances[0] - covariances[1]).norm() / covariances[1].norm()) > 1e-3:
            return False
    near = {"whitening.centre": 1e-4}  # around 0, the others are not
    return all(
        torch.allclose(tensor, states[1][name], rtol=1e-4, atol=near.get(name, 0.0))
        for name, tensor in states[0].items()
    )


def main(arguments: list[str] | None = None) -> int:
    """Write or check the backbones; the return value is the process's exit code."""
    parser = argparse.ArgumentParser(prog="make_scattering", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=SHELF, help="the folder to write to or to check")
    parser.add_argument("--check", action="store_true", help="compare the files with a rebuild, write nothing")
    options = parser.parse_args(arguments)
    try:
        for name, architecture in BACKBONES.items():
            if options.check:
                check(name, options.output)
            else:
                backbone.save(options.output / name, network(architecture), PROVENANCE)
    except DpddError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
