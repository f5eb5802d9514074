"""``dpdd-sim pretrain``: train a public backbone from a public dataset, and write it with its card.

After each epoch the whole state of the run is on disk; ``--resume`` goes on from there to exactly the weights
that the uninterrupted run would have had (with ``--minutes``, to weights as good: the clock then shapes the
schedule).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from dpdd.common.data import benchmarks
from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone, checkpoint
from dpdd.common.models.backbone import Architecture, Backbone, Provenance
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.feature_network import FeatureNetwork, Normalisation
from dpdd.common.models.probe import accuracy, extract, linear_probe
from dpdd.common.models.training import Training, TrainingSettings
from dpdd.common.models.wrn import WideResNetArchitecture
from dpdd.common.progress import duration


@dataclass(frozen=True)
class PublicData:
    """A dataset that backbones may be trained from: its source, its terms, and what is done to it."""

    source: str
    licence: str
    gray_size: int | None = None


_IMAGENET_TERMS = "ImageNet terms of access: non-commercial research and education"
PUBLIC_DATA = {
    "tinyimagenet32": PublicData("tinyimagenet32", _IMAGENET_TERMS),
    "tinyimagenet32-gray28": PublicData("tinyimagenet32", _IMAGENET_TERMS, gray_size=28),
}


WHITENED = 10_000
"""Public images whose features the whitening is fitted to."""

HELD_OUT_SEED = 0
"""Picks the held-out images whatever the run's own seed: one backbone can start from another's weights."""


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(TrainingSettings):
    """All that decides the weights (but for the clock, if `minutes` is given).

    Parameters
    ----------
    name, data
        Name of the backbone, and of its public dataset (a key of `PUBLIC_DATA`).
    widths, pool_after
        Shape of a ConvNet (see `ConvNetArchitecture`); ignored if `depth` is given.
    depth, widen
        Shape of a Wide-ResNet (see `WideResNetArchitecture`).
    validation
        Share of the images held out for the reported accuracy.
    start
        A backbone (name or path) of the same shape and public data whose weights to begin with.

    See `TrainingSettings` for the rest.
    """

    name: str
    data: str
    widths: tuple[int, ...] = (32, 32, 64, 64, 128, 128, 256, 320)
    pool_after: tuple[int, ...] = (1, 3, 5)
    depth: int | None = None
    widen: int = 1
    validation: float = 0.05
    start: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data not in PUBLIC_DATA:
            raise ConfigError(f"There is no public dataset {self.data!r}; there are {', '.join(PUBLIC_DATA)}.")
        if not self.name or Path(self.name).name != self.name:
            raise ConfigError(f"A backbone's name is that of a file, without folders, not {self.name!r}.")
        if not 0 < self.validation < 1:
            raise ConfigError(f"The share held out lies between 0 and 1, and is not {self.validation}.")

    def architecture(self, images: Tensor, classes: int) -> Architecture:
        """Give the architecture for such images (N, C, H, W)."""
        _, channels, height, width = images.shape
        if self.depth is not None:
            return WideResNetArchitecture(channels, height, width, classes, self.depth, self.widen)
        return ConvNetArchitecture(channels, height, width, classes, self.widths, self.pool_after)

    def command(self) -> str:
        """Give the command line that has these settings; options at their defaults are left out.

        >>> PretrainSettings(name="mine", data="tinyimagenet32", widths=(8, 16), flip=False).command()
        'dpdd-sim pretrain --flip no --name mine --data tinyimagenet32 --widths 8,16'
        """
        words = ["dpdd-sim", "pretrain"]
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                words += [_option(field.name), _spelled(value)]
        return shlex.join(words)


def pretrain(
    settings: PretrainSettings,
    folder: Path,
    *,
    log: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    probes: tuple[str, ...] = (),
) -> Backbone:
    """Train a backbone, and save it as ``folder/name.safetensors`` and ``.json``.

    Parameters
    ----------
    settings, folder
        What to train, and where to put it.
    log
        Plain text, one line per epoch, appended to; ``folder/name.log`` by default.
    resume
        Go on from ``folder/name.checkpoint/`` if it is there.
    quiet
        Print nothing to stderr.
    probes
        Datasets with a test part on which to report a (non-private) linear probe at the end.
    """
    say = _Journal(log or folder / f"{settings.name}.log", quiet)
    images, labels, classes = public_images(settings.data)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(HELD_OUT_SEED))
    held_out, kept = order.tensor_split([max(1, round(settings.validation * len(order)))])
    validation = images[held_out], labels[held_out]
    images, labels = images[kept], labels[kept]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = backbone.build(settings.architecture(images, classes), _normalisation(images))
    history = settings.command()
    if settings.start is not None:
        begun = _started(settings, settings.start, network)
        network.load_state_dict(begun.network.state_dict())
        history = f"{begun.card.provenance.command} && {history}"
    training = Training(settings, network, images, labels)

    state = folder / f"{settings.name}.checkpoint"
    if resume and (saved := checkpoint.read(state, asdict(settings))) is not None:
        training.restore(*saved)
        say(f"resumed after epoch {training.epoch}")
    else:
        count = sum(parameter.numel() for parameter in network.parameters())
        say(settings.command())
        say(f"{count:,} parameters, {len(images):,} images, torch threads {torch.get_num_threads()}")
    while training.progress < 1:
        _run_epoch(training, validation, say)
        checkpoint.write(state, asdict(settings), training.tensors(), training.position())

    result = training.result()
    result.whitening.fit(extract(result, images[:WHITENED]))
    finished = _save(settings, history, folder / settings.name, result, validation)
    provenance = finished.card.provenance
    say(f"saved {settings.name}, held-out accuracy {provenance.accuracy:.4f}, SHA-256 {finished.card.sha256}")
    for name in probes:
        say(probe(finished.network, name))
    return finished


def public_images(name: str) -> tuple[Tensor, Tensor, int]:
    """Give the uint8 images (N, C, H, W), the labels and the number of classes of a key of `PUBLIC_DATA`."""
    public = PUBLIC_DATA[name]
    data = benchmarks.load(public.source, "train")
    images = torch.tensor(data.images)
    if public.gray_size is not None:
        images = to_gray(images, public.gray_size)
    return images, torch.tensor(data.labels), len(data.classes)


def to_gray(images: Tensor, size: int) -> Tensor:
    """Turn uint8 RGB images into grey ones (the luma of ITU-R BT.601) of another size."""
    luma = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    small = [
        F.interpolate((part * luma).sum(1, keepdim=True), size=(size, size), mode="bilinear", antialias=True)
        for part in torch.split(images, 2000)
    ]
    return torch.cat(small).round().clamp(0, 255).to(torch.uint8)


def probe(network: FeatureNetwork, name: str) -> str:
    """Give a sentence on the accuracy of a linear probe on a dataset with a test part."""
    train, test = benchmarks.load(name, "train"), benchmarks.load(name, "test")
    images, labels = torch.tensor(train.images), torch.tensor(train.labels)
    started = time.monotonic()
    features = extract(network, images)
    speed = len(images) / (time.monotonic() - started)
    test_features = extract(network, torch.tensor(test.images))
    score = linear_probe(features, labels, test_features, torch.tensor(test.labels))
    return f"linear probe on {name}, not private: test accuracy {score:.4f} ({speed:.0f} images/s forward)"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what ``pretrain`` takes to its parser; `run` does the work."""
    parser.formatter_class = argparse.HelpFormatter  # the defaults below are spelled as one types them
    add = parser.add_argument

    add("--name", required=True, help="the backbone's name, and that of its files")
    add("--data", required=True, choices=sorted(PUBLIC_DATA), help="public dataset")
    add("--folder", type=Path, default=Path("backbones"), help="where the files go (default: %(default)s)")
    add("--log", type=Path, help="plain log of epochs (default: NAME.log in the folder)")
    add("--threads", type=int, help="torch threads")
    add("--resume", action="store_true", help="go on from the last checkpoint")
    add("--probe", action="append", default=[], metavar="DATA", help="report a linear probe on this dataset")
    add("--quiet", action="store_true", help="print nothing; the log file is written all the same")

    settings = parser.add_argument_group("what decides the weights")
    defaults = {field.name: field.default for field in fields(PretrainSettings)}

    def setting(name: str, kind: object, help: str, choices: tuple[str, ...] | None = None) -> None:
        default = defaults[name]
        text = help if default is None else f"{help} (default: {_spelled(default)})"
        settings.add_argument(_option(name), type=kind, default=default, choices=choices, help=text)  # type: ignore[arg-type]

    setting("widths", _numbers, "ConvNet: channels of each layer")
    setting("pool_after", _numbers, "ConvNet: layers, from 1, whose output is halved")
    setting("depth", int, "train a Wide-ResNet of this depth (6n + 4) instead of a ConvNet")
    setting("widen", int, "Wide-ResNet: width factor")
    setting("epochs", int, "passes over the images")
    setting("minutes", float, "end after this time at the latest, with the learning rate annealed")
    setting("batch_size", int, "images per step")
    setting("optimizer", str, "SGD with Nesterov momentum, or AdamW", ("sgd", "adamw"))
    setting("learning_rate", float, "peak of the schedule")
    setting("momentum", float, "of SGD")
    setting("weight_decay", float, "of kernels and matrices")
    setting("schedule", str, "course of the learning rate", ("one-cycle", "cosine"))
    setting("warmup", float, "share of the run in which the rate rises")
    setting("label_smoothing", float, "raises public accuracy, tends to hurt frozen features")
    setting("crop_padding", int, "random shifts by up to so many pixels")
    setting("flip", _yes_or_no, "random mirror images, yes or no")
    setting("crop", int, "train on random cut-outs of this side first: more epochs in the same time")
    setting("crop_until", float, "share of the run with cut-outs; the rest sees whole images")
    setting("ema", float, "decay of an average of the weights, 0 for none")
    setting("validation", float, "share of the images held out")
    setting("seed", int, "of weights, order and augmentation")
    setting("start", str, "begin with the weights of this backbone, of the same shape and data; give another --seed")


def run(arguments: argparse.Namespace) -> None:
    """Pretrain as the command line says."""
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    pretrain(
        PretrainSettings(**{field.name: getattr(arguments, field.name) for field in fields(PretrainSettings)}),
        arguments.folder,
        log=arguments.log,
        resume=arguments.resume,
        quiet=arguments.quiet,
        probes=tuple(arguments.probe),
    )


class _Journal:
    """Writes each line to the log file, and to stderr unless quiet."""

    def __init__(self, path: Path, quiet: bool) -> None:
        self.path, self.quiet = path, quiet
        path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if not self.quiet:
            tqdm.write(line, file=sys.stderr)


def _run_epoch(training: Training, validation: tuple[Tensor, Tensor], say: _Journal) -> None:
    before = training.seconds
    with tqdm(
        total=training.batches,
        desc=f"epoch {training.epoch + 1}",
        unit="batch",
        leave=False,
        disable=say.quiet or not sys.stderr.isatty(),
    ) as bar:

        def on_step(loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()

        loss, steps = training.run_epoch(on_step)
    speed = steps * training.settings.batch_size / max(training.seconds - before, 1e-9)
    left = training.seconds * (1.0 / training.progress - 1.0)
    say(
        f"epoch {training.epoch:3d}  progress {training.progress:6.1%}  loss {loss:.4f}  "
        f"held-out accuracy {accuracy(training.result(), *validation):.4f}  {speed:.0f} images/s  "
        f"{training.seconds / 60:.1f} min" + (f", {duration(left)} left" if left > 0 else "")
    )


def _save(
    settings: PretrainSettings, history: str, target: Path, network: FeatureNetwork, validation: tuple[Tensor, Tensor]
) -> Backbone:
    """Save twice: the accuracy on the card is that of the weights as stored, after rounding.

    `history` has the commands that made the weights, from the first on.
    """

    def save(measured: float) -> Backbone:
        licence = PUBLIC_DATA[settings.data].licence
        backbone.save(target, network, Provenance(settings.data, licence, measured, history, settings.seed))
        return backbone.load(target)

    return save(round(accuracy(save(0.0).network, *validation), 4))


def _started(settings: PretrainSettings, name: str, network: FeatureNetwork) -> Backbone:
    """Load the backbone to begin with; it must have seen nothing but this data, and be of this shape."""
    start = backbone.load(name)
    if start.card.provenance.public_data != settings.data:
        raise ConfigError(
            f"Backbone {name} was trained from {start.card.provenance.public_data}, not from {settings.data}: "
            "the new card could not name all that its weights have seen."
        )
    if start.card.architecture != network.architecture or start.card.normalisation != network.normalisation:
        raise ConfigError(
            f"Backbone {name} has another shape or input normalisation than this run asks for; "
            "give the --widths, --pool-after, --depth and --widen that it was made with."
        )
    return start


def _normalisation(images: Tensor) -> Normalisation:
    """Mean and deviation of the (public) training images, rounded to what a card can show."""
    pixels = images[:10_000].float() / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp_min(1e-3)
    return Normalisation(tuple(round(v, 4) for v in mean.tolist()), tuple(round(v, 4) for v in std.tolist()))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _spelled(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"must be yes or no, not {text!r}")
    return text == "yes"
