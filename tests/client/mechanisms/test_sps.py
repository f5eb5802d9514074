"""SPS's private half by brute force: one record moves the sums by at most one unit; silos add up to the last bit.

Both hold for every stage, for every kind of statistic, whatever the records and whatever a stage is asked with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.sps import MECHANISM
from dpdd.client.records.records import Records
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import query
from dpdd.common.methods.sps.classifier import residuals
from dpdd.common.methods.sps.feature_statistics import CLASS_SUMS, RESIDUAL, SECOND_MOMENT, FeatureStatistics
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.methods.sps.specification import feature_statistics, pinned, specification, stage_input_shapes
from dpdd.common.models.backbone import Provenance, build, load, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.randomness import gaussians
from dpdd.common.wire.request import ReleaseRequest
from tests.common.methods.sps.released import reference_of, statistics_of

CLASSES = ("a", "b", "c", "d")
SHAPE = (1, 12, 12)
ROWS = {"global_dimensions": 5, "class_dimensions": 4, "class_layers": 2, "thumbnail": 3}
GROUPS = {"groups": 6, "classes_per_group": 2}
NO_EMBEDDING = {"features": 0, "picture": 0}
EMBEDDING = {"features": 6, "picture": 4}
KINDS: dict[str, dict[str, object]] = {
    "embedding": EMBEDDING,
    "features": {"features": 6, "picture": 0},
    "picture": {"features": 0, "picture": 4},
    "rows": ROWS | NO_EMBEDDING,
    "grouped rows": ROWS | GROUPS | NO_EMBEDDING,
    "both": ROWS | EMBEDDING,
    "both, grouped": ROWS | GROUPS | EMBEDDING,
    "both, tiny clip": ROWS | GROUPS | EMBEDDING | {"clip": 0.001},
    "both, large clip": ROWS | EMBEDDING | {"clip": 1.0},
    "two backbones": ROWS | GROUPS | NO_EMBEDDING | {"more_backbones": ["other"]},
    "two backbones, both": ROWS | EMBEDDING | {"more_backbones": ["other"]},
    "extreme shares": ROWS | EMBEDDING | {"count_weight": 0.3, "row_share": 0.899},
}
STAGE_INPUTS = ("zero", "random", "adversarial", "large")
kinds = pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random network, and another beside it: privacy must not depend on what backbones compute."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("backbone")
    for name, widths in (("tiny", (4, 6, 8)), ("other", (5, 7))):
        network = build(ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=widths, pool_after=(1,)))
        with torch.no_grad():
            network.whitening.fit(network.eval().features(torch.rand(200, *SHAPE)))
        provenance = Provenance(public_data="none", licence="none", accuracy=0.0, command="test", seed=1)
        save(folder / name, network, provenance)
    return folder / "tiny"


def request_for(
    backbone: Path, settings: Mapping[str, object], stage_input: Mapping[str, NDArray] | None = None
) -> tuple[ReleaseRequest, MethodSettings]:
    """Stage 0, or with an input stage 1 of two."""
    more = [str(backbone.with_name(str(name))) for name in settings.get("more_backbones", ())]  # type: ignore[attr-defined]
    named = {**settings, "backbone": str(backbone), "stages": 2, "more_backbones": more}
    values = pinned(MethodSettings(**named))  # type: ignore[arg-type]
    request = ReleaseRequest(
        run="test",
        method="sps",
        settings=values.model_dump(mode="json"),
        epsilon=float("inf"),
        delta=1e-5,
        classes=CLASSES,
        shape=SHAPE,
        public_seed=5,
        stage=0 if stage_input is None else 1,
        backbone_sha256=bytes.fromhex(load(backbone).card.sha256),
        stage_input=stage_input or {},
    )
    return request, values


def spec_of(values: MethodSettings, request: ReleaseRequest) -> FeatureStatistics:
    return specification(values, RunDescription.of(request), request.stage)


def stage_input_for(backbone: Path, settings: Mapping[str, object], kind: str) -> dict[str, NDArray]:
    request, values = request_for(backbone, settings)
    shapes = stage_input_shapes(spec_of(values, replace(request, stage=1)))
    generator = np.random.Generator(np.random.PCG64(8))
    found: dict[str, NDArray] = {}
    for name, shape in shapes.items():
        noise = generator.normal(size=shape)
        found[name] = {
            "zero": np.zeros(shape, np.float32),
            "random": noise.astype(np.float32),
            # A classifier that is sure and wrong of everything, and means as far off as means can be.
            "adversarial": (1e4 * np.sign(noise) if name == "teacher" else -np.ones(shape)).astype(np.float32),
            "large": (3e38 * np.sign(noise)).astype(np.float32),
        }[kind]
    return found


def clean_sums(
    backbone: Path,
    settings: Mapping[str, object],
    images: np.ndarray,
    labels: np.ndarray,
    stage_input: Mapping[str, NDArray] | None = None,
) -> dict[str, np.ndarray]:
    request, values = request_for(backbone, settings, stage_input)
    plan = query("sps").plan(request, values)
    with np.errstate(over="ignore"):
        records = Records(images.astype(np.float32), labels.astype(np.int64))
    return dict(MECHANISM.run(records, request, values, plan, SeededEntropy(0), lambda *_: None).arrays)


def hostile(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images, and among them constant, huge, tiny, negative and checkered ones, and a NaN and an infinity."""
    generator = np.random.Generator(np.random.PCG64(seed))
    images = generator.random((count, *SHAPE))
    images[0] = 0.0
    images[1] = 1.0
    images[2] *= 1e20
    images[3] *= -1e6
    images[4] = np.indices(SHAPE[1:]).sum(0) % 2
    images[5] *= 1e-30
    images[6, 0, 3, 4] = np.nan
    images[7, 0, 11, 0] = np.inf
    images[8] = 1e36
    return images, generator.integers(0, len(CLASSES), count)


ODD = 9  # so many of them are not ordinary


def square(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray] | None = None) -> int:
    """The squared distance of two sums (or of one to zero), in Python integers."""
    return sum(int(((one[n] - (other[n] if other else 0)).astype(object) ** 2).sum()) for n in one)


def brute_force(backbone: Path, settings: Mapping[str, object], stage_input: Mapping[str, NDArray] | None) -> None:
    images, labels = hostile(ODD + 3, 3)
    whole = clean_sums(backbone, settings, images, labels, stage_input)
    for index in range(len(images)):
        kept = np.arange(len(images)) != index
        moved = square(whole, clean_sums(backbone, settings, images[kept], labels[kept], stage_input))
        assert moved <= FIXED_POINT_ONE**2, f"record {index} moves the sums by {math.sqrt(moved) / FIXED_POINT_ONE}"


@kinds
def test_one_record_moves_the_first_stage_by_at_most_one_unit(backbone: Path, settings: dict[str, object]) -> None:
    brute_force(backbone, settings, None)


@kinds
@pytest.mark.parametrize("kind", STAGE_INPUTS)
def test_one_record_moves_a_later_stage_by_at_most_one_unit(
    backbone: Path, settings: dict[str, object], kind: str
) -> None:
    brute_force(backbone, settings, stage_input_for(backbone, settings, kind))


@kinds
@pytest.mark.parametrize("kind", [None, *STAGE_INPUTS])
def test_the_floats_themselves_have_norm_one_at_most(
    backbone: Path, settings: dict[str, object], kind: str | None
) -> None:
    """Before anything is put on a grid: nothing hangs on the grid's own clipping."""
    images, labels = (torch.from_numpy(array) for array in hostile(ODD + 20, 4))
    stage_input = None if kind is None else stage_input_for(backbone, settings, kind)
    request, values = request_for(backbone, settings, stage_input)
    spec = spec_of(values, request)
    by_class = reference_of(spec, stage_input or {}, labels)
    with torch.inference_mode():
        rows, embeddings = spec.measure(images.float(), by_class)
    squares = torch.full((len(images),), values.count_weight**2, dtype=torch.float64)
    for statistic in spec.statistics:
        squares += spec.copies(statistic) * rows[:, spec.columns[statistic.name]].double().square().sum(1)
    if embeddings is not None and stage_input is None:
        norms = embeddings.double().norm(dim=1)
        squares += (norms * spec.weights[CLASS_SUMS]) ** 2
        squares += (norms**2 * spec.weights[SECOND_MOMENT]) ** 2
    elif embeddings is not None and stage_input is not None:
        guess = torch.from_numpy(stage_input["teacher"].astype(np.float32))
        norms = residuals(embeddings, labels, guess).double().norm(dim=1) * embeddings.double().norm(dim=1)
        squares += (norms * spec.weights[RESIDUAL]) ** 2
    finite = torch.isfinite(squares)
    assert finite[ODD:].all() or kind == "large"
    assert bool((squares[finite] <= 1.0 + 1e-5).all())


@kinds
@pytest.mark.parametrize("kind", [None, "zero", "random"])
def test_a_record_with_nan_or_infinity_contributes_exactly_nothing(
    backbone: Path, settings: dict[str, object], kind: str | None
) -> None:
    images, labels = hostile(ODD + 3, 5)
    stage_input = None if kind is None else stage_input_for(backbone, settings, kind)
    expected = clean_sums(backbone, settings, images, labels, stage_input)
    for value in (np.nan, np.inf, -np.inf):
        bad = images[-1:].copy()
        bad[0, 0, 5, 5] = value
        found = clean_sums(backbone, settings, np.concatenate([images, bad]), np.append(labels, 1), stage_input)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


@kinds
@pytest.mark.parametrize("kind", [None, "zero", "random", "adversarial"])
def test_any_split_over_silos_adds_up_to_the_last_bit(
    backbone: Path, settings: dict[str, object], kind: str | None
) -> None:
    images, labels = hostile(600, 6)
    stage_input = None if kind is None else stage_input_for(backbone, settings, kind)
    whole = clean_sums(backbone, settings, images, labels, stage_input)
    order = np.random.Generator(np.random.PCG64(1)).permutation(600)
    parts = [
        clean_sums(backbone, settings, images[piece], labels[piece], stage_input)
        for piece in np.split(order, [1, 7, 260, 511])
    ]
    assert square(whole) > 0
    for name in whole:
        np.testing.assert_array_equal(sum(part[name] for part in parts), whole[name])


@pytest.mark.parametrize("stage", [0, 1])
def test_shipped_features_add_up_to_the_last_bit_too(stage: int) -> None:
    """The real sizes, at which matrix products take other roads than at small ones."""
    shape, generator = (1, 28, 28), np.random.Generator(np.random.PCG64(2))
    images, labels = generator.random((300, *shape), dtype=np.float32), generator.integers(0, 4, 300)
    values = MethodSettings(backbone="scatter28", stages=2, global_dimensions=20)
    request = ReleaseRequest(
        run="test", method="sps", settings={}, epsilon=math.inf, delta=1e-5, classes=CLASSES, shape=shape, public_seed=5
    )
    request = replace(request, stage=stage, backbone_sha256=bytes.fromhex(load("scatter28").card.sha256))
    shapes = stage_input_shapes(spec_of(values, request)) if stage else {}
    request = replace(request, stage_input={name: generator.normal(size=size) for name, size in shapes.items()})

    def sums(kept: np.ndarray) -> Mapping[str, np.ndarray]:
        records, plan = Records(images[kept], labels[kept]), query("sps").plan(request, values)
        return MECHANISM.run(records, request, values, plan, SeededEntropy(0), lambda *_: None).arrays

    whole = sums(np.arange(300))
    parts = [sums(piece) for piece in np.split(generator.permutation(300), [3, 130])]
    for name in whole:
        np.testing.assert_array_equal(sum(part[name] for part in parts), whole[name])


@kinds
@pytest.mark.parametrize("kind", [None, "zero", "random", "adversarial"])
def test_sums_are_those_of_a_plain_recomputation(backbone: Path, settings: dict[str, object], kind: str | None) -> None:
    """Grid against floats: rounding apart, nothing is lost, clipped twice, or added elsewhere."""
    images, labels = hostile(ODD + 60, 7)
    images, labels = images[ODD:], labels[ODD:]
    stage_input = None if kind is None else stage_input_for(backbone, settings, kind)
    sums = clean_sums(backbone, settings, images, labels, stage_input)
    request, values = request_for(backbone, settings, stage_input)
    spec = spec_of(values, request)
    expected = statistics_of(spec, torch.from_numpy(images).float(), torch.from_numpy(labels), 0.0, stage_input).sums
    assert sums.keys() == expected.keys() == {segment.name for segment in spec.layout.segments}
    for segment in spec.layout.segments:
        # A plain entry loses at most a step per record; a factor's entry half a step of its own, coarser grid.
        step = 1e-6 if segment.factors is None else 3e-4
        np.testing.assert_allclose(
            sums[segment.name] / FIXED_POINT_ONE, expected[segment.name], atol=60 * step, rtol=1e-5
        )


def test_a_small_clip_makes_every_record_weigh_exactly_one(backbone: Path) -> None:
    images, labels = hostile(ODD + 3, 4)
    settings = KINDS["rows"] | {"clip": 0.001}
    for index in (0, 4, ODD):
        alone = clean_sums(backbone, settings, images[index : index + 1], labels[index : index + 1])
        assert 0.999 < math.sqrt(square(alone)) / FIXED_POINT_ONE <= 1.0


@pytest.mark.parametrize("kind", ["embedding", "both, tiny clip"])
def test_little_of_the_norm_is_left_unused(backbone: Path, kind: str) -> None:
    """A bright image has an embedding of norm 1; rounding takes 2% off its factors at most."""
    images = np.random.Generator(np.random.PCG64(2)).random((1, *SHAPE)) * 0.2 + 0.8
    alone = clean_sums(backbone, KINDS[kind], images, np.array([1]))
    assert 0.96 < math.sqrt(square(alone)) / FIXED_POINT_ONE <= 1.0


@kinds
@pytest.mark.parametrize("kind", [None, "random"])
def test_counts_are_released_inside_the_same_vector(
    backbone: Path, settings: dict[str, object], kind: str | None
) -> None:
    images, labels = hostile(ODD + 50, 7)
    stage_input = None if kind is None else stage_input_for(backbone, settings, kind)
    sums = clean_sums(backbone, settings, images[ODD:], labels[ODD:], stage_input)
    counts = sums["count"][:, 0] / FIXED_POINT_ONE / settings.get("count_weight", 0.1)
    np.testing.assert_allclose(counts, np.bincount(labels[ODD:], minlength=4), atol=0.01)


def test_without_clipping_the_sums_are_the_moments(backbone: Path) -> None:
    """Against a plain re-computation of means and second moments, with no code of ours but the network."""
    images, labels = hostile(ODD + 40, 8)
    images, labels = images[ODD:], labels[ODD:]
    settings = KINDS["both, large clip"]
    request, values = request_for(backbone, settings)
    sums = clean_sums(backbone, settings, images, labels)
    spec = spec_of(values, request)
    layers_of = spec.network.layers_of(torch.from_numpy(images).float())
    statistic = next(statistic for statistic in spec.statistics if statistic.name == "class-layer-02")
    projection = gaussians(5, f"sps projection 2 {statistic.dimensions}", (statistic.dimensions, 8)) / 8**0.5
    z = np.einsum("dc,nchw->nhwd", projection, layers_of[2].detach().double().numpy())
    z = 2.0 / (1.0 + np.exp(-z)) - 1.0
    for label in range(4):
        mine = z[labels == label]
        first = mine.mean(axis=(1, 2)).sum(0)
        second = np.einsum("nhwi,nhwj->ij", mine, mine) / (mine.shape[1] * mine.shape[2])
        expected = np.concatenate([first, second[np.triu_indices(statistic.dimensions)]]) * spec.weights[statistic.name]
        np.testing.assert_allclose(sums[statistic.name][label] / FIXED_POINT_ONE, expected, atol=2e-4)


@pytest.mark.parametrize("clip", [1.0, 0.1])
def test_all_stages_sum_the_same_statistic(backbone: Path, clip: float) -> None:
    """What was taken off put back, a later stage's rows are the first stage's, also where the first stage clips."""
    images, labels = hostile(ODD + 200, 9)
    images, labels = images[ODD:], labels[ODD:]
    settings = KINDS["rows"] | {"clip": clip}
    first = clean_sums(backbone, settings, images, labels)
    request, values = request_for(backbone, settings)
    before, spec = (spec_of(values, replace(request, stage=stage)) for stage in (0, 1))
    counts = np.bincount(labels, minlength=4)
    with torch.inference_mode():
        rows, _ = before.measure(torch.from_numpy(images).float())
    if clip < 1.0:
        norms = sum(rows[:, before.columns[statistic.name]].square().sum(1) for statistic in before.statistics)
        assert (torch.as_tensor(norms) > 0.989).float().mean() > 0.5, "most are clipped"
    means = np.stack([rows[labels == label].mean(0).numpy() for label in range(4)])
    scale = np.concatenate(
        [np.full(statistic.width, before.weights[statistic.name]) for statistic in before.statistics]
    )
    stage_input = {"rows": (means / scale).astype(np.float32)}
    later = clean_sums(backbone, settings, images, labels, stage_input)
    for statistic in spec.statistics:
        place = spec.columns[statistic.name]
        back = counts[:, None] * stage_input["rows"][:, place]
        moved = later[statistic.name] / FIXED_POINT_ONE / spec.weights[statistic.name]
        expected = first[statistic.name] / FIXED_POINT_ONE / before.weights[statistic.name]
        found = moved + (back if statistic.scope == "class" else back.sum(0))
        np.testing.assert_allclose(found / 200, expected / 200, atol=2e-4)


def test_stages_take_turns_with_the_backbones(backbone: Path) -> None:
    """Rows of the second stage are the other network's, its input put back; the embedding is still the first's."""
    images, labels = hostile(ODD + 60, 9)
    images, labels = images[ODD:], labels[ODD:]
    settings = KINDS["two backbones, both"] | {"clip": 1.0}
    request, values = request_for(backbone, settings, stage_input_for(backbone, settings, "zero"))
    specs = [spec_of(values, replace(request, stage=stage)) for stage in (0, 1)]
    assert [spec.network.layer_channels for spec in specs] == [(4, 6, 8), (5, 7)]
    alone = feature_statistics(values, load(backbone.with_name("other")), 4, SHAPE, 5, first=load(backbone))
    with torch.inference_mode():
        (_, first), (_, later), (expected, _) = (
            spec.measure(torch.from_numpy(images).float()) for spec in (*specs, alone)
        )
    assert first is not None and later is not None and torch.equal(first, later)
    sums = clean_sums(backbone, settings, images, labels, stage_input_for(backbone, settings, "zero"))
    for statistic in alone.statistics:
        plain = expected[:, alone.columns[statistic.name]].sum(0) / alone.weights[statistic.name]
        found = sums[statistic.name].sum(0) / FIXED_POINT_ONE / specs[1].weights[statistic.name]
        np.testing.assert_allclose(found / 60, plain.numpy() / 60, atol=2e-4)


@pytest.mark.parametrize("damage", ["missing", "another"])
def test_a_second_backbone_is_pinned_by_its_hash(backbone: Path, damage: str) -> None:
    request, values = request_for(backbone, KINDS["two backbones"])
    wrong = () if damage == "missing" else ("00" * 32,)
    values = values.model_copy(update={"more_sha256": wrong})
    with pytest.raises(ConfigError, match="without their hashes" if damage == "missing" else "asked for"):
        query("sps").plan(request, values)


def test_another_backbone_than_the_requests_is_refused(backbone: Path) -> None:
    request, values = request_for(backbone, KINDS["both"])
    with pytest.raises(ConfigError, match="asked for"):
        query("sps").plan(replace(request, backbone_sha256=bytes(32)), values)


def test_groups_that_cannot_be_balanced_are_refused(backbone: Path) -> None:
    with pytest.raises(ValueError, match="balanced"):
        query("sps").plan(*request_for(backbone, KINDS["both"] | {"groups": 3, "classes_per_group": 3}))


@kinds
def test_a_stage_wants_exactly_its_own_input(backbone: Path, settings: dict[str, object]) -> None:
    good = stage_input_for(backbone, settings, "random")
    query("sps").plan(*request_for(backbone, settings, good))
    name, array = next(iter(good.items()))
    for bad in (
        {},
        good | {"more": array},
        good | {name: array[:, :-1]},
        good | {name: array[None]},
        good | {name: np.full_like(array, np.nan)},
        good | {name: np.full_like(array, -np.inf)},
        good | {name: np.full(array.shape, 1e39)},
        {"other" if key == name else key: value for key, value in good.items()},
    ):
        request, values = request_for(backbone, settings, good)
        with pytest.raises(ConfigError, match="has the stage input"):
            query("sps").plan(replace(request, stage_input=bad), values)
    request, values = request_for(backbone, settings)
    with pytest.raises(ConfigError, match="has the stage input"):
        query("sps").plan(replace(request, stage_input=good), values)


def test_a_stage_beyond_the_last_is_refused(backbone: Path) -> None:
    request, values = request_for(backbone, EMBEDDING, stage_input_for(backbone, EMBEDDING, "zero"))
    with pytest.raises(ConfigError, match="2 stages, and this is a request for stage 3"):
        query("sps").plan(replace(request, stage=2), values)
