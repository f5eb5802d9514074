"""Members by a diffusion model of one's own, through Hugging Face's `diffusers` (`pip install 'dpdd[diffusion]'`).

The model is an unconditional pipeline in the format of `diffusers` (a `unet` and a `scheduler`, weights in safetensors)
in the folder ``$DPDD_MODELS/NAME``. It is read from there and from nowhere else: a name is no path and no address, so a
request can make nobody load what they did not put there, and nothing is downloaded.

A variation adds noise up to a time that its strength says, and has the model take it away again (SDEdit, Meng et al.
2022): image to image, for any model that was trained to remove noise.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from dpdd.common.config import one_line
from dpdd.common.data.lazy_torchvision import load_torchvision
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.private_evolution.generator import Generator
from dpdd.common.methods.private_evolution.generator_shapes import Bytes, to_bytes, to_floats
from dpdd.common.methods.private_evolution.settings import EvolutionSettings
from dpdd.common.randomness import subseed

ENVIRONMENT = "DPDD_MODELS"
AT_ONCE = 50
STEPS = 20
"""Of taking noise away, at strength 1."""


class DiffusionGenerator(Generator):
    """A network that knows the noise in an image, and the scheduler that it was trained with."""

    def __init__(self, unet: Any, scheduler: Any, shape: tuple[int, int, int], steps: int = STEPS) -> None:
        channels, size = int(unet.config.in_channels), unet.config.sample_size
        self.size = (size, size) if isinstance(size, int) else (shape[1:] if size is None else tuple(size))
        if channels != shape[0]:
            raise ConfigError(f"the diffusion model is for images of {channels} channels, not of {shape[0]}")
        self.unet, self.scheduler, self.shape, self.steps = unet.eval(), scheduler, shape, steps

    @classmethod
    def of(cls, settings: EvolutionSettings, run: RunDescription) -> DiffusionGenerator:
        """The model in the folder of that name."""
        return cls(*_load(settings.model), run.image_shape)

    def random(self, count: int, seed: int) -> Bytes:
        """Images out of noise."""
        images = np.full((count, *self.shape), 128, np.uint8)
        return self.variation(images, images, 1.0, seed)

    def variation(self, records: Bytes, mates: Bytes, strength: float, seed: int) -> Bytes:
        """Noise added and taken away; mates are not needed."""
        parts = [np.zeros((0, *self.shape), np.uint8)]
        for part, begin in enumerate(range(0, len(records), AT_ONCE)):
            parts.append(self._through(records[begin : begin + AT_ONCE], strength, subseed(seed, f"batch {part}")))
        return np.concatenate(parts)

    def _through(self, records: Bytes, strength: float, seed: int) -> Bytes:
        random = torch.Generator().manual_seed(seed)
        self.scheduler.set_timesteps(self.steps)
        times = self.scheduler.timesteps
        times = times[min(len(times) - 1, round((1.0 - strength) * len(times))) :]
        images = functional.interpolate(
            2.0 * torch.from_numpy(to_floats(records)) - 1.0, size=self.size, mode="bilinear"
        )
        noise = torch.randn(images.shape, generator=random)
        images = noise if strength >= 1.0 else self.scheduler.add_noise(images, noise, times[:1].expand(len(images)))
        with torch.inference_mode():
            for time in times:
                predicted = self.unet(images, time).sample
                images = self.scheduler.step(predicted, time, images, generator=random).prev_sample
        small = functional.interpolate(images, size=self.shape[1:], mode="bilinear", antialias=True)
        return to_bytes((0.5 * small + 0.5).clamp(0.0, 1.0).numpy())


def _load(name: str) -> tuple[Any, Any]:
    """Network and scheduler of the pipeline called `name`; ConfigError where it is not here."""
    base = os.environ.get(ENVIRONMENT, "")
    folder = Path(base).expanduser() / name
    if not base or not (folder / "unet").is_dir() or not (folder / "scheduler").is_dir():
        raise ConfigError(
            f"there is no diffusion model {name!r} here: set {ENVIRONMENT} to a folder that has a folder of that name, "
            "with the unet and the scheduler of a diffusers pipeline"
        )
    try:
        import diffusers

        load_torchvision()  # which it would import when it is used
    except ImportError:
        raise ConfigError(
            "generator = \"diffusion\" needs diffusers, which is not installed: pip install 'dpdd[diffusion]'"
        ) from None
    try:
        unet = diffusers.UNet2DModel.from_pretrained(folder / "unet", local_files_only=True, use_safetensors=True)
        scheduler = diffusers.DDIMScheduler.from_pretrained(folder / "scheduler", local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the diffusion model {name!r} cannot be read ({one_line(error)})") from None
    return unet, scheduler
