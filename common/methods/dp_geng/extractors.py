"""Feature extractors: networks that tell generated images apart, each from other random weights.

The coordinator trains them, and sends their kernels with the request: training is not reproducible to the last bit from
one machine to the next, and silos must all measure the same. Images and weights of a generator that was private are
private at no further cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_geng.settings import MethodSettings
from dpdd.common.methods.dp_geng.specification import IMAGES, KERNELS
from dpdd.common.models.random_net import RandomNet
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.siamese_augmentation import SiameseAugmentation

BATCH = 128


def stage_input(settings: MethodSettings, generated: LabelledSet, run: RunDescription) -> Mapping[str, NDArray]:
    """The extractors' kernels, and a few generated images of each class, for the scale and subspace of features."""
    images = torch.from_numpy(generated.images).float() / 255.0
    labels = torch.from_numpy(generated.labels)
    networks = []
    for number in range(settings.networks):
        start = RandomNet.draw(
            run.public_seed, number, run.image_shape, settings.width, settings.depth, len(run.classes)
        )
        trained = settings.extractors == "trained"
        networks.append(
            _trained(start, images, labels, settings, subseed(run.public_seed, f"extractor {number}"))
            if trained
            else start
        )
        run.progress("training feature extractors", number + 1, settings.networks)
    kernels = {
        KERNELS.format(layer): torch.stack([network.kernels[layer] for network in networks]).numpy()
        for layer in range(settings.depth)
    }
    places = np.linspace(0, len(generated), settings.auxiliary_images, endpoint=False).astype(np.int64)
    mixed = np.random.Generator(np.random.PCG64(subseed(run.public_seed, "auxiliary images"))).permutation(places)
    return {**kernels, IMAGES: np.ascontiguousarray(generated.images[mixed])}


def _trained(start: RandomNet, images: Tensor, labels: Tensor, settings: MethodSettings, seed: int) -> RandomNet:
    """The network after `extractor_epochs` of telling the classes of generated images apart."""
    network = replace(
        start,
        kernels=tuple(kernel.clone().requires_grad_(True) for kernel in start.kernels),
        head=start.head.clone().requires_grad_(True),
    )
    optimiser = torch.optim.AdamW(network.weights, lr=3e-3, weight_decay=5e-4)
    generator, view = torch.Generator().manual_seed(seed), 0
    for _ in range(settings.extractor_epochs):
        for pick in torch.randperm(len(images), generator=generator).split(BATCH):
            seen = images[pick]
            if settings.augment:
                seen = SiameseAugmentation.draw(seed, view, settings.flips)(seen)
            view += 1
            loss = functional.cross_entropy(network.features(seen) @ network.head.T, labels[pick])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return RandomNet(tuple(kernel.detach() for kernel in network.kernels), network.head.detach())
