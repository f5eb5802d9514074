"""`distil`: one call from a labelled dataset in memory to a differentially private synthetic one, as for a notebook.

It makes the request that a coordinator would make of one silo, and answers it with the same mechanisms, noise and
accountant. There is no ledger, no policy and no signature, and no file is written: each call is a release of its own,
and whoever calls it keeps the count.

>>> import numpy as np
>>> images = np.random.default_rng(0).integers(0, 256, (400, 8, 8), dtype=np.uint8)
>>> labels = np.array(["cat", "dog"] * 200)
>>> pets = distil(images, labels, method="dp-merf", epsilon=8.0, images_per_class=5,
...               settings={"features": 50}, synthesis={"steps": 20, "batch": 10})
The set is (ε, δ) = (8, 1e-05)-differentially private for neighbours that differ in one labelled record, added or
removed (accountant: analytic Gaussian).
Settings, image shape and class list count as public; the class list was read off the labels, so pass classes=... if
which classes occur is a secret.
No ledger is kept: calling distil again on the same people spends again; use dpdd-client for a budget.
>>> pets.images.shape, pets.classes
((10, 1, 8, 8), ('cat', 'dog'))
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdd.client import local_synthesis
from dpdd.client.records.records import Records
from dpdd.common.config import one_line, validate, warn_of_renamed
from dpdd.common.data.formats.labels import encode
from dpdd.common.errors import ConfigError, DataError, IntegrityError, WireError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.registry import AnyMethod
from dpdd.common.methods.registry import method as method_called
from dpdd.common.methods.request_plan import planned
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.common.privacy.entropy import SystemEntropy
from dpdd.common.privacy.events import compose
from dpdd.common.progress import Console, Progress
from dpdd.common.synthesis.distilled_set import DistilledSetSettings, distilled_set_settings, method_values
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import Priors, released_counts, shares
from dpdd.common.synthesis.priors import checked as checked_priors
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise, of_one_silo
from dpdd.common.wire.parsing import check_classes
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request


def distil(
    images: ArrayLike,
    labels: ArrayLike,
    *,
    method: str = "sps",
    epsilon: float,
    delta: float = 1e-5,
    images_per_class: int = 10,
    priors: Priors | None = None,
    classes: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    synthesis: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> LabelledSet:
    """A synthetic set that is (ε, δ)-differentially private in the given records; prints what that means.

    Parameters
    ----------
    images
        uint8, or floats in [0, 1], of shape N, H, W or N, C, H, W. Left as they are.
    labels
        One integer or name for each. With `classes`, a name in that list or a position; without, the distinct labels
        become the class list, which then counts as public.
    method, settings, synthesis
        As in a scenario: a method of `dpdd.common.methods.registry`, what it releases (``[method.settings]``), and how
        images are made of that (``[synthesis.settings]``); what is left out has its default. Methods that look through
        a public backbone get one for images of this shape that was made without data: name another in `settings`
        ("backbone"). Choose them without looking at the records.
    epsilon, delta, images_per_class
        The budget of this call, and the size of the set.
    priors
        The class shares that soft labels and teacher assume (``[synthesis] priors``): "as-released", "equal", or a
        share for every class. Left out, they are as the method fits them. A given share should be common knowledge.
    seed
        A public one, for random features and first images. Noise never comes from a seed.
    progress
        Who is told how far it is; left out, stderr.

    Returns
    -------
    LabelledSet
        With a `teacher`, a classifier that is as private as the images, where the method's statistics contain one.
    """
    chosen = method_called(method)
    _check(chosen, epsilon, delta, seed)
    records, names = _records(images, labels, classes)
    run = RunDescription(names, records.shape, seed, images_per_class)
    request = _request(chosen, run, epsilon, delta, settings or {}, synthesis or {})
    own, plan = chosen.settings(method_values(request)), _plan(chosen, request)
    weights = [chosen.count_weight(own, stage) for stage in range(chosen.stages(own))]
    declared = checked_priors(priors, names, counted=weights[0] is not None)
    console = Console()
    told = progress or console
    answered = local_synthesis.run_stages(records, request, chosen, own, SystemEntropy(), told)
    event = compose(*(answer.event for _, answer in answered))
    if event != plan.event or math.fsum(answer.distance for _, answer in answered) > plan.distance:
        raise IntegrityError("the mechanism ran another event than the one it planned; nothing was released")
    statistics = [of_one_silo(answer.arrays, answer.event, asked.stage_input) for asked, answer in answered]
    how = chosen.synthesis_settings(distilled_set_settings(request).synthesis)
    described = RunDescription.of(request, images_per_class, progress=told, priors=declared)
    product = chosen.synthesise(statistics, own, how, described)
    console.finish()
    if not isinstance(product, LabelledSet):
        raise ConfigError(f"{chosen.name} makes a model, not a set")
    lost = _lost(statistics[0], names) if weights[0] is not None else []
    print(_promise(plan, classes is None, lost))
    if declared is None:
        return product
    return replace(product, priors=tuple(shares(declared, names, released_counts(statistics, weights)).tolist()))


def _check(chosen: AnyMethod, epsilon: float, delta: float, seed: int) -> None:
    """ConfigError unless the method can be asked for a private set of images at this budget."""
    if not 0.0 < epsilon <= LARGEST_EPSILON:
        raise ConfigError(f"epsilon lies in (0, {LARGEST_EPSILON:g}], not {epsilon:g}: distil is for private records")
    if not 0.0 < delta <= 0.01:
        raise ConfigError(f"delta lies in (0, 0.01], not {delta:g}")
    if not 0 <= seed < 1 << 64:
        raise ConfigError(f"the seed is a whole number from 0 to 2^64 - 1, not {seed}")
    if DataKind.IMAGE not in chosen.data_kinds or Kind.DISTILLED_SET not in chosen.release_kinds:
        raise ConfigError(f"{chosen.name} makes no set of images; sps, dosser and dp-merf do")
    chosen.check_budget(epsilon)


def _records(images: ArrayLike, labels: ArrayLike, classes: Sequence[str] | None) -> tuple[Records, tuple[str, ...]]:
    """The records, and the class list that their labels are positions in; DataError where they cannot be that."""
    pixels, given = _pixels(images), _labels(labels)
    if len(pixels) != len(given):
        raise DataError(f"there are {len(pixels)} images and {len(given)} labels; every image has one label")
    if isinstance(classes, str):
        raise ConfigError(f"classes is a list of names, not the text {classes!r}")
    listed = np.unique(given) if classes is None else classes
    try:
        names = check_classes([str(name) for name in listed])
    except WireError as error:
        raise ConfigError(str(error)) from None
    return Records(pixels, encode(given, names, "labels", unit="record")), names


def _pixels(images: ArrayLike) -> NDArray[Any]:
    """uint8 or float32; N, C, H, W."""
    try:
        pixels = np.asarray(images)
    except ValueError:
        raise DataError("images must be one array, all of one shape; resize them first") from None
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise DataError(f"images must be uint8, or floats in [0, 1], not {pixels.dtype}")
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.ndim != 4:
        raise DataError(f"images must be of shape N, H, W or N, C, H, W, not {pixels.shape}")
    if pixels.shape[3] in (1, 3, 4) and pixels.shape[1] not in (1, 3, 4):
        raise DataError(
            f"images of shape {pixels.shape} seem to have their channels last, and they come before height and width: "
            "pass images.transpose(0, 3, 1, 2)"
        )
    if pixels.dtype == np.uint8:
        return pixels
    if not ((pixels >= 0.0) & (pixels <= 1.0)).all():
        raise DataError(
            "images of floats must lie in [0, 1], and some value does not (or is NaN); scale them, or pass uint8"
        )
    return pixels.astype(np.float32)


def _labels(labels: ArrayLike) -> NDArray[Any]:
    """One row of integers or names."""
    given = np.asarray(labels)
    if given.ndim != 1:
        raise DataError(f"labels must be one row, a label for each image, not of shape {given.shape}")
    if given.dtype == object:  # as in a column of pandas
        for kind in (str, int, np.integer):
            if all(isinstance(label, kind) for label in given):
                return given.astype(np.str_ if kind is str else np.int64)
    if given.dtype.kind == "f" and np.isnan(given).any():
        raise DataError("some labels are NaN: leave those records out, or label them")
    if given.dtype.kind not in "biuU":
        raise DataError(f"labels must be integers or names, all of them, not {given.dtype}")
    return given.astype(np.uint8) if given.dtype.kind == "b" else given


def _request(
    chosen: AnyMethod,
    run: RunDescription,
    epsilon: float,
    delta: float,
    settings: Mapping[str, Any],
    synthesis: Mapping[str, Any],
) -> ReleaseRequest:
    """What a coordinator would ask one silo for a distilled set; ConfigError where it could not."""
    warn_of_renamed(settings, chosen.settings_schema, "settings: ")
    warn_of_renamed(synthesis, chosen.synthesis_schema, "synthesis: ")
    own = chosen.resolve(chosen.settings(settings), run, epsilon, delta)
    asked = {
        "method": own.on_wire(),
        "synthesis": chosen.synthesis_settings(synthesis).on_wire(),
        "images_per_class": run.images_per_class,
    }
    request = ReleaseRequest(
        run="distil",
        method=chosen.name,
        kind=Kind.DISTILLED_SET,
        settings=validate(asked, DistilledSetSettings, "distil").on_wire(),
        epsilon=epsilon,
        delta=delta,
        classes=run.classes,
        shape=run.shape,
        public_seed=run.public_seed,
        backbone_sha256=_sha256(chosen.backbones(own)),
    )
    try:
        return decode_request(request.encode())  # as a silo does, with all its checks
    except WireError as error:
        raise ConfigError(str(error)) from None


def _sha256(backbones: Sequence[str]) -> bytes:
    """Of the first of these public backbones; empty when there is none."""
    if not backbones:
        return b""
    from dpdd.common.models import backbone

    return bytes.fromhex(backbone.load(backbones[0]).card.sha256)


def _plan(chosen: AnyMethod, request: ReleaseRequest) -> Plan:
    """What all stages together will cost; ConfigError where they could not be run."""
    try:
        return planned(request, chosen.settings(method_values(request)))
    except ValueError as error:
        raise ConfigError(one_line(error)) from None


def _lost(statistics: Statistics, classes: Sequence[str]) -> list[str]:
    """The classes whose noisy count, which is public now, is lost in its noise."""
    lost = lost_in_noise(statistics.sums["count"][:, 0], statistics.noise)
    return [name for name, gone in zip(classes, lost, strict=True) if gone]


def _promise(plan: Plan, classes_from_labels: bool, lost: Sequence[str]) -> str:
    """The guarantee in plain sentences."""
    promised = plan.guarantee
    read_off = (
        "; the class list was read off the labels, so pass classes=... if which classes occur is a secret"
        if classes_from_labels
        else ""
    )
    sentences = [
        f"The set is (ε, δ) = ({promised.epsilon:g}, {promised.delta:g})-differentially private for neighbours that "
        f"differ in one labelled record, added or removed (accountant: {promised.accountant}).",
        f"Settings, image shape and class list count as public{read_off}.",
        "No ledger is kept: calling distil again on the same people spends again; use dpdd-client for a budget.",
    ]
    if lost:
        few = ", ".join(lost[:6]) + (", ..." if len(lost) > 6 else "")
        sentences.append(
            f"At this budget there are too few records of {few} to be told from noise: do not rely on those images."
        )
    return "\n".join(textwrap.fill(sentence, 118, break_on_hyphens=False) for sentence in sentences)
