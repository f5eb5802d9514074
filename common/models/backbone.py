"""Public backbones: a network, and a card that says where it comes from, as two files and no pickle.

``name.safetensors`` holds the weights: matrices and kernels in half precision, BatchNorm and biases in
single; they load as single precision. ``name.json`` is the card. The header of the weights file repeats the
architecture and the input normalisation, so that the SHA-256 of that one file, which is how a request names a
backbone, pins all that computes. Scattering transforms for any shape need no file: they are built in code, and pinned
by the SHA-256 of their recipe (`scattering_recipe`).

>>> import tempfile, torch
>>> from dpdd.common.models.convnet import ConvNetArchitecture
>>> architecture = ConvNetArchitecture(channels=1, height=8, width=8, classes=3, widths=(4, 6))
>>> network = build(architecture, Normalisation(mean=(0.4,), std=(0.2,)))
>>> with tempfile.TemporaryDirectory() as folder:
...     saved = save(Path(folder, "tiny"), network, Provenance(
...         public_data="noise", licence="none needed", accuracy=0.33, command="none", seed=0))
...     backbone = load(Path(folder, "tiny"))
>>> backbone.card == saved, backbone.card.name, backbone.card.classes
(True, 'tiny', 3)
>>> tuple(backbone.network.features(torch.rand(2, 1, 8, 8)).shape)
(2, 6)
>>> load("scattering-1x8x12").card.architecture
PooledScatteringArchitecture(channels=1, height=8, width=12, kind='pooled-scattering')
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, cast

import torch
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from dpdd.common.errors import ConfigError, DataError, IntegrityError
from dpdd.common.files.atomic import write_atomically
from dpdd.common.files.untrusted import shown
from dpdd.common.models import scattering_recipe
from dpdd.common.models.choice import available as available
from dpdd.common.models.choice import built_shape, shipped_weights
from dpdd.common.models.choice import comes_with_dpdd as comes_with_dpdd
from dpdd.common.models.convnet import ConvNet, ConvNetArchitecture
from dpdd.common.models.feature_network import FeatureNetwork, Normalisation
from dpdd.common.models.pooled_scattering import PooledScatteringArchitecture, PooledScatteringNet
from dpdd.common.models.scattering import ScatteringArchitecture, ScatteringNet
from dpdd.common.models.wrn import WideResNet, WideResNetArchitecture

Architecture = Annotated[
    ConvNetArchitecture | WideResNetArchitecture | ScatteringArchitecture | PooledScatteringArchitecture,
    Field(discriminator="kind"),
]
"""Any architecture that `build` knows; `kind` tells them apart in JSON."""

_HEADER = "dpdd"
_SUFFIXES = (".safetensors", ".json")


@dataclass(frozen=True)
class Provenance:
    """Where a backbone's weights come from.

    Parameters
    ----------
    public_data, licence
        Name of the public dataset, and the terms it comes under.
    accuracy
        Share of held-out public images that the stored weights classify rightly.
    command, seed
        What made the weights.
    """

    public_data: str
    licence: str
    accuracy: float
    command: str
    seed: int


@dataclass(frozen=True)
class Card:
    """The JSON beside a backbone's weights."""

    name: str
    architecture: Architecture
    normalisation: Normalisation
    provenance: Provenance
    sha256: str

    @property
    def classes(self) -> int:
        """Number of public classes, the outputs of the head."""
        return self.architecture.classes


@dataclass(frozen=True)
class Backbone:
    """A loaded network, in eval mode, with its card."""

    network: FeatureNetwork
    card: Card

    def check_images(self, shape: tuple[int, ...]) -> None:
        """ConfigError unless it takes images of this shape.

        Trained networks take images from the size that they were trained on; scattering transforms take one size.
        """
        own = self.card.architecture
        if len(shape) != 3 or shape[0] != own.channels:
            raise ConfigError(
                f"backbone {self.card.name} is for images of {own.channels} channels, not for records of shape {shape}"
            )
        scattering = isinstance(own, ScatteringArchitecture | PooledScatteringArchitecture)
        size = f"{own.height} x {own.width} pixels"
        if scattering and shape[1:] != (own.height, own.width):
            raise ConfigError(f"backbone {self.card.name} is for images of {size}, not {shape[1]} x {shape[2]}")
        if shape[1] < own.height or shape[2] < own.width:
            raise ConfigError(f"backbone {self.card.name} takes images from {size} up, not {shape[1]} x {shape[2]}")


def build(architecture: Architecture, normalisation: Normalisation | None = None) -> FeatureNetwork:
    """Make the network of an architecture, with fresh weights from torch's generator."""
    network: FeatureNetwork
    match architecture:
        case ConvNetArchitecture():
            network = ConvNet(architecture, normalisation)
        case WideResNetArchitecture():
            network = WideResNet(architecture, normalisation)
        case ScatteringArchitecture():
            network = ScatteringNet(architecture, normalisation)
        case PooledScatteringArchitecture():
            network = PooledScatteringNet(architecture, normalisation)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def save(path: str | Path, network: FeatureNetwork, provenance: Provenance) -> Card:
    """Write ``path.safetensors``, then ``path.json``, each atomically; `path` is a folder and a name."""
    stem = _stem(Path(path))
    architecture = cast("ConvNet | WideResNet | ScatteringNet | PooledScatteringNet", network).architecture
    weights = safetensors.save(
        {name: _stored(tensor) for name, tensor in _weights(network).items()},
        metadata={_HEADER: _header(architecture, network.normalisation)},
    )
    card = Card(
        name=stem.name,
        architecture=architecture,
        normalisation=network.normalisation,
        provenance=provenance,
        sha256=hashlib.sha256(weights).hexdigest(),
    )
    write_atomically(_sibling(stem, ".safetensors"), weights)
    write_atomically(_sibling(stem, ".json"), (json.dumps(asdict(card), indent=2) + "\n").encode())
    return card


def load(name_or_path: str | Path, sha256: str | None = None) -> Backbone:
    """Load a backbone in eval mode, with frozen parameters.

    Parameters
    ----------
    name_or_path
        A shipped name (see `available`), ``scattering-CxHxW`` for one that is built in code for images of that shape,
        or the path of a saved backbone, with or without suffix.
    sha256
        If given, the weights file, or the recipe, that the caller insists on.

    Raises
    ------
    ConfigError
        There is no such backbone, or this version builds it by another recipe than `sha256`.
    IntegrityError
        Card and weights do not belong together, or not to `sha256`.
    """
    shape = built_shape(name_or_path) if isinstance(name_or_path, str) else None
    if shape is not None:
        return _built(str(name_or_path), PooledScatteringArchitecture(*shape), sha256)
    weights, text, where = _read(name_or_path)
    card = _parse_card(text, where)
    digest = hashlib.sha256(weights).hexdigest()
    if digest != card.sha256:
        raise IntegrityError(
            f"The weights of backbone {where} have SHA-256 {digest[:16]}..., but its card says "
            f"{card.sha256[:16]}...; fetch both files again."
        )
    if sha256 is not None and digest != sha256.lower():
        raise IntegrityError(
            f"Backbone {where} has SHA-256 {digest[:16]}..., but {sha256[:16]}... was asked for; "
            "both sides need the same file."
        )
    tensors, header = _unpack(weights, where)
    if header != _header(card.architecture, card.normalisation):
        raise IntegrityError(
            f"The card of backbone {where} describes another architecture or input normalisation than its "
            "weights file; fetch both files again."
        )
    _check_size(card.architecture, tensors, where)
    network = build(card.architecture, card.normalisation)
    _fill(network, tensors, where)
    return Backbone(network.eval().requires_grad_(False), card)


def _built(name: str, architecture: PooledScatteringArchitecture, sha256: str | None) -> Backbone:
    """The scattering transform of a recipe."""
    recipe = scattering_recipe.Recipe(architecture)
    if sha256 is not None and recipe.sha256 != sha256.lower():
        raise ConfigError(
            f"this version of dpdd builds backbone {name} by the recipe {recipe.sha256[:16]}..., but "
            f"{sha256[:16]}... was asked for; both sides need versions with the same recipe"
        )
    network = build(architecture)
    _fill(network, scattering_recipe.weights(recipe), name)
    command = f"none: dpdd builds it, recipe {recipe.version}"
    provenance = Provenance("none (random dead leaves, drawn in code)", "none needed", 0.0, command, recipe.seed)
    card = Card(name, architecture, network.normalisation, provenance, recipe.sha256)
    return Backbone(network.eval().requires_grad_(False), card)


def _weights(network: FeatureNetwork) -> dict[str, Tensor]:
    """Give all that must be stored; the count of batches plays no part at a fixed momentum."""
    return {name: t for name, t in network.state_dict().items() if not name.endswith("num_batches_tracked")}


def _stored(tensor: Tensor) -> Tensor:
    dtype = torch.float16 if tensor.ndim > 1 else torch.float32
    return tensor.detach().to("cpu", dtype).contiguous()


def _check_size(architecture: Architecture, stored: dict[str, Tensor], where: str) -> None:
    """IntegrityError for a network with more numbers than are stored: made, it might take all memory.

    Convolutions, head and whitening are counted, which are nearly all. Transforms are computed, and small.
    """
    match architecture:
        case ConvNetArchitecture(channels, _, _, classes, widths):
            last = widths[-1]
            numbers = sum(9 * before * after for before, after in pairwise((channels, *widths)))
        case WideResNetArchitecture(channels, _, _, classes):
            last = 64 * architecture.widen
            numbers = 9 * (16 * channels + architecture.blocks_per_stage * last**2)
        case _:
            return
    if numbers + last * (classes + last) > sum(tensor.numel() for tensor in stored.values()):
        raise IntegrityError(f"The weights of backbone {where} are fewer than its architecture has.")


def _fill(network: FeatureNetwork, stored: dict[str, Tensor], where: str) -> None:
    expected = _weights(network)
    if stored.keys() != expected.keys():
        odd = min(stored.keys() ^ expected.keys())
        raise IntegrityError(
            f"The weights of backbone {where} do not fit its architecture: tensor {odd!r} is "
            f"{'missing' if odd in expected else 'unknown'}."
        )
    for name, tensor in expected.items():
        value = stored[name]
        if value.shape != tensor.shape or not value.is_floating_point():
            raise IntegrityError(
                f"The weights of backbone {where} do not fit its architecture: tensor {name!r} is "
                f"{value.dtype} of shape {list(value.shape)}, not floats of shape {list(tensor.shape)}."
            )
        if not bool(torch.isfinite(value).all()):
            raise IntegrityError(f"The weights of backbone {where} hold a NaN or an infinity in tensor {name!r}.")
        with torch.no_grad():
            tensor.copy_(value)


def _read(name_or_path: str | Path) -> tuple[bytes, str, str]:
    """Give weights, card and a name for messages."""
    files: tuple[Traversable, Traversable]
    if isinstance(name_or_path, str) and name_or_path in available():
        where = name_or_path
        folder = shipped_weights()
        files = (folder.joinpath(f"{where}.safetensors"), folder.joinpath(f"{where}.json"))
    else:
        stem = _stem(Path(name_or_path))
        where = str(stem)
        files = (_sibling(stem, ".safetensors"), _sibling(stem, ".json"))
    missing = [file.name for file in files if not file.is_file()]
    if len(missing) == len(files):
        raise ConfigError(
            f"There is no backbone {where!r}: give the path of a saved one, scattering-CxHxW for images of that shape, "
            f"or a shipped name ({', '.join(available()) or 'none is installed'})."
        )
    if missing:
        raise IntegrityError(f"Backbone {where} is incomplete: {missing[0]} is missing.")
    try:
        return files[0].read_bytes(), files[1].read_text(encoding="utf-8"), where
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Backbone {where} cannot be read: {error}.") from error


def _stem(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in _SUFFIXES else path


def _sibling(stem: Path, suffix: str) -> Path:
    return stem.with_name(stem.name + suffix)


def _header(architecture: Architecture, normalisation: Normalisation) -> str:
    value = {"architecture": asdict(architecture), "normalisation": asdict(normalisation)}
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _unpack(weights: bytes, where: str) -> tuple[dict[str, Tensor], str | None]:
    """Give the tensors, and dpdd's entry in the header (8 bytes of little-endian length, then JSON)."""
    try:
        tensors = safetensors.load(weights)  # checks lengths, offsets and types
        length = int.from_bytes(weights[:8], "little")
        metadata: dict[str, str] = json.loads(weights[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        why = shown(error, 200)
        raise IntegrityError(f"The weights of backbone {where} are no safetensors file: {why}.") from error
    return tensors, metadata.get(_HEADER)


def _parse_card(text: str, where: str) -> Card:
    try:
        card = TypeAdapter(Card).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its beginning"
        raise IntegrityError(
            f"The card of backbone {where} is not valid at {place}: {shown(first['msg'], 300)}."
        ) from error
    except ConfigError as error:
        raise IntegrityError(f"The card of backbone {where} is not valid: {error}") from error
    if json.loads(json.dumps(asdict(card))) != json.loads(text):
        raise IntegrityError(f"The card of backbone {where} has entries that dpdd does not write.")
    return card
