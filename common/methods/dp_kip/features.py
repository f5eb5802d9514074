"""What DP-KIP's kernel sees of images: pixels, or a public network's features; and back again, through the Jacobian."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.dp_kip.kernels import FullyConnectedNTK, InnerProduct, ProductKernel
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.dp_kip.table_inputs import support_shape
from dpdd.common.methods.sps.specification import backbone
from dpdd.common.models.choice import AUTO, backbone_for, check_built_for
from dpdd.common.models.feature_network import FeatureNetwork

AT_ONCE = 50
"""Support images that are led back together."""


def with_backbone(settings: GradientSettings, shape: tuple[int, ...]) -> GradientSettings:
    """Settings that name the network whose features are the kernel's, where it has any."""
    if settings.kernel == "scattering" and DataKind.of_shape(shape) is DataKind.TABLE:
        raise ConfigError("the kernel scattering is for images: take fc-ntk for a table")
    if settings.kernel != "scattering" or settings.backbone != AUTO:
        return settings
    return settings.model_copy(update={"backbone": backbone_for(shape)})


def network_of(settings: GradientSettings, run: RunDescription) -> FeatureNetwork | None:
    """The public network of the kernel's features; None for a kernel of pixels. ConfigError for one that does not fit.

    Its features are the scattering coefficients of all orders at all positions, standardised by public constants.
    """
    if settings.kernel != "scattering":
        return None
    name = with_backbone(settings, run.shape).backbone
    check_built_for(name, run.shape)
    try:
        chosen = backbone(name, run.backbone_sha256.hex())
    except IntegrityError as error:
        raise ConfigError(str(error)) from None
    chosen.check_images(run.shape)
    return chosen.network


def kernel_of(settings: GradientSettings) -> ProductKernel:
    """The kernel as a function of inner products of inputs, pixels or features."""
    return FullyConnectedNTK(settings.depth) if settings.kernel == "fc-ntk" else InnerProduct()


def inputs_of(network: FeatureNetwork | None, images: Tensor) -> Tensor:
    """The kernel's inputs (N, P): pixels, or features."""
    return images.flatten(1) if network is None else network.features(images)


def input_size(settings: GradientSettings, run: RunDescription) -> int:
    """How many numbers the kernel sees of an image."""
    if settings.kernel != "scattering":
        return int(np.prod(support_shape(run)))
    network = network_of(settings, run)
    assert network is not None
    return _size(network, run.shape)


@lru_cache(maxsize=16)
def _size(network: FeatureNetwork, shape: tuple[int, ...]) -> int:
    with torch.inference_mode():
        return int(network.features(torch.zeros(1, *shape)).shape[1])


def pulled_back(network: FeatureNetwork, images: NDArray[np.float32], gradient: NDArray[np.floating]) -> NDArray:
    """The gradient with respect to pixels (images, C, H, W) that one with respect to their features gives."""
    parts = []
    of_features = torch.from_numpy(np.ascontiguousarray(gradient, np.float32)).view(len(images), -1)
    for begin in range(0, len(images), AT_ONCE):
        pixels = torch.from_numpy(images[begin : begin + AT_ONCE].copy()).requires_grad_(True)
        with torch.enable_grad():
            features = network.features(pixels)
        parts.append(torch.autograd.grad(features, pixels, of_features[begin : begin + AT_ONCE])[0])
    return torch.cat(parts).numpy()
