"""The gradient of each record's loss by itself, with Opacus; clipping, sampling and noise are dpdd's own."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.errors import ConfigError
from dpdd.common.methods.dp_geng.expert import check_layers


class RecordGradients:
    """An expert whose gradients come record by record. Records are arguments of `of`, and are not kept."""

    def __init__(self, network: nn.Module) -> None:
        check_layers(network)
        from opacus.grad_sample import GradSampleModule  # only here: it is long to load

        for name, layer in network.named_modules():
            trained = any(weight.requires_grad for weight in layer.parameters(recurse=False))
            if trained and type(layer) not in GradSampleModule.GRAD_SAMPLERS:
                raise ConfigError(
                    f"layer {name or 'itself'} of the expert is a {type(layer).__name__}, and Opacus cannot take its "
                    "gradients record by record; use layers that it knows, such as Conv2d, GroupNorm and Linear, or "
                    "register a gradient sampler for it"
                )
        self.network = network
        try:
            self._sampled = GradSampleModule(network, loss_reduction="sum")
        except (NotImplementedError, ValueError) as error:
            raise ConfigError(f"Opacus cannot take the expert's gradients record by record: {error}") from None

    def of(self, images: Tensor, labels: Tensor) -> Tensor:
        """A row per record: the gradient of its cross-entropy with respect to all weights, as in `vector_of`."""
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            functional.cross_entropy(self._sampled(images), labels, reduction="sum").backward()
        rows: list[Tensor] = [weight.grad_sample.flatten(1) for weight in self.network.parameters()]  # type: ignore[attr-defined]
        self._sampled.zero_grad(set_to_none=True)
        return torch.cat(rows, dim=1)
