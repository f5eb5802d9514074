"""What a run makes: a labelled dataset, a model, or a description of columns.

A `ReleasedModel` is the ConvNet of the literature with weights that are post-processing of releases, such as a
federation trained by noisy rounds. It travels and is kept as numbers, never as code.

>>> import torch
>>> network = EvaluationConvNet((1, 8, 8), classes=2, width=4)
>>> model = ReleasedModel.of(network, ("cat", "dog"), (1, 8, 8), width=4)
>>> bool(torch.equal(model.logits(torch.zeros(3, 1, 8, 8)), network(torch.zeros(3, 1, 8, 8))))
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown
from dpdd.common.methods.column_histograms.description import TableDescription
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product_files import MODEL, UNREADABLE, file_sha256


@dataclass(frozen=True, eq=False)
class ReleasedModel:
    """The weights of an `EvaluationConvNet` for images of this shape, and the classes that it tells apart."""

    weights: Mapping[str, NDArray[np.float32]]
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    width: int

    @classmethod
    def of(
        cls, network: EvaluationConvNet, classes: tuple[str, ...], shape: tuple[int, int, int], width: int
    ) -> ReleasedModel:
        """The model that `network` is now."""
        weights = {name: np.array(value.detach().cpu().numpy()) for name, value in network.state_dict().items()}
        return cls(weights, classes, shape, width)

    @property
    def _numbers(self) -> int:
        """In the convolutions and the classifier, which are nearly all that the network has."""
        channels, height, width = self.shape
        convolutions = 9 * (channels * self.width + 2 * self.width**2)
        return convolutions + self.width * (height // 8) * (width // 8) * len(self.classes)

    @cached_property
    def _network(self) -> EvaluationConvNet:
        with torch.random.fork_rng(devices=[]):  # building a network draws weights
            network = EvaluationConvNet(self.shape, len(self.classes), self.width)
        network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in self.weights.items()})
        return network.eval().requires_grad_(False)

    @property
    def network(self) -> EvaluationConvNet:
        """The network itself, in eval mode."""
        return self._network

    def logits(self, images: Tensor) -> Tensor:
        """Unnormalised log probabilities for images in [0, 1]."""
        scores: Tensor = self._network(images)
        return scores

    @property
    def teacher(self) -> None:
        """It needs none: it is a classifier itself."""

    @property
    def facts(self) -> dict[str, Any]:
        """What a data card says of it."""
        return {"model": f"ConvNet of width {self.width}", "image_shape": list(self.shape), "file": MODEL}

    def save(self, folder: Path) -> str:
        """Write ``model.safetensors`` into `folder`; its SHA-256."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"classes": self.classes, "format": "dpdd model v1", "shape": self.shape, "width": self.width}
        arrays = {name: np.ascontiguousarray(value) for name, value in self.weights.items()}
        save_file(arrays, folder / MODEL, metadata={"dpdd": json.dumps(about, sort_keys=True)})
        return file_sha256(folder / MODEL)

    @classmethod
    def load(cls, folder: Path | str) -> ReleasedModel:
        """The model in `folder`."""
        path = Path(folder) / MODEL
        try:
            with safe_open(path, framework="numpy") as file:
                about = json.loads(file.metadata()["dpdd"])
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            channels, height, width = about["shape"]
            if not all(isinstance(size, int) and size > 0 for size in (channels, height, width, about["width"])):
                raise ValueError("its sizes are no sizes")
            model = cls(weights, tuple(about["classes"]), (channels, height, width), about["width"])
            if model._numbers > sum(value.size for value in weights.values()):  # made, it might take all memory
                raise ValueError("its weights are fewer than its network has")
            _ = model._network
            return model
        except FileNotFoundError:
            raise DataError(f"{path}: there is no model here") from None
        except (*UNREADABLE, MemoryError, RuntimeError) as error:
            raise DataError(f"{path}: this is not a dpdd model ({shown(error, 200)})") from None


Product = LabelledSet | ReleasedModel | TableDescription
"""What a run makes: a method a set or a model, column histograms a description."""
