"""Build the scattering backbones `scatter28` and `scatter32`: fixed wavelets, standardised on images drawn in code.

``python -m dpdd.scenarios.backbones.make_scattering`` writes them; with ``--check`` it only compares. A scattering
transform has nothing to train, but its maps differ in scale by orders of magnitude, and SPS wants them standardised.
The mean and deviation of each map come from *dead leaves*, the classical random model of natural images: discs of
random size, place and colour that hide each other. They are drawn from a public seed, so no dataset is involved, and
anyone gets the same files (the same to the last bit on the same machine; ``--check`` allows for rounding on others).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown
from dpdd.common.models import backbone
from dpdd.common.models.backbone import Provenance
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.models.scattering import ScatteringArchitecture, ScatteringNet
from dpdd.scenarios import rebuild

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
    command="python -m dpdd.scenarios.backbones.make_scattering",
    seed=SEED,
)


def network(architecture: ScatteringArchitecture) -> ScatteringNet:
    """Make the network, standardised on dead leaves."""
    scattering = ScatteringNet(architecture).eval()
    leaves = dead_leaves(IMAGES, architecture.channels, architecture.height, architecture.width, SEED)
    scattering.standardise(torch.from_numpy(leaves))
    with torch.inference_mode():
        scattering.whitening.fit(torch.cat([scattering.features(part) for part in torch.from_numpy(leaves).split(100)]))
    return scattering


def write(folder: Path) -> None:
    """Save both backbones in `folder`."""
    for name, architecture in BACKBONES.items():
        backbone.save(folder / name, network(architecture), PROVENANCE)


def check(name: str, folder: Path) -> None:
    """Raise `DataError` unless `folder` holds the backbone that a rebuild would give."""
    held = backbone.load(folder / name)
    same = held.card.architecture == BACKBONES[name] and held.card.provenance == PROVENANCE
    if not same or not _alike(held.network, network(BACKBONES[name])):
        raise DataError(f"{shown(folder / name)}: it is not what dead leaves give; build it again")


def _alike(one: FeatureNetwork, other: FeatureNetwork) -> bool:
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

    def check_all(folder: Path) -> None:
        for name in BACKBONES:
            check(name, folder)

    return rebuild.main(
        arguments, program="make_scattering", description=__doc__, output=SHELF, write=write, check=check_all
    )


if __name__ == "__main__":
    sys.exit(main())
