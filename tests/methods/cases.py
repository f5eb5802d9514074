"""Settings at which the registered methods take seconds. A method without an entry is tried at its defaults."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from dpdd.common.methods.evaluation.models import SentModel, convnet_model, in_request, linear_model, teacher_model
from dpdd.common.methods.registry import QUERIES
from dpdd.common.models import table_logistic
from dpdd.common.models.backbone import Provenance, build, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.teacher import Teacher
from tests.methods.harness import CLASSES, TABLE, Case


def _tiny_backbone() -> str:
    """An untrained network for images of 12 x 12, with two layers to look at."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        architecture = ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(6, 8), pool_after=(1,))
        network = build(architecture)
    save(folder / "tiny", network, Provenance("none", "none", accuracy=0.0, command="test", seed=1))
    return str(folder / "tiny")


def _evaluation() -> tuple[Case, ...]:
    """Evaluation is no method, and held to the same contract: with one model, with two of different kinds, of rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        network = convnet_model(EvaluationConvNet((1, 28, 28), len(CLASSES), 4), 4, mean=0.3, std=0.4)
    generator, embedding = np.random.Generator(np.random.PCG64(3)), ImageEmbedding(8, 2, 1)
    weights = generator.standard_normal((len(CLASSES), embedding.dimensions)).astype(np.float32)
    teacher = teacher_model(Teacher(weights, "scatter28", "", embedding))
    one, two = [network], [network, teacher]
    shape = table_logistic.weights_shape(TABLE)
    rows = [linear_model(generator.standard_normal(shape).astype(np.float32)) for _ in range(2)]
    return (
        Case("evaluation", settings=_models(one), first_input=in_request(one)),
        Case("evaluation", "two-models", settings=_models(two), first_input=in_request(two)),
        Case.of_table("evaluation", settings=_models(rows[:1]), first_input=in_request(rows[:1])),
        Case.of_table("evaluation", "two-models-of-a-table", settings=_models(rows), first_input=in_request(rows)),
    )


def _models(models: list[SentModel]) -> dict[str, object]:
    return {"models": [model.settings.model_dump() for model in models]}


_MATCHING = {"draws": 4, "networks": 2, "width": 4, "rate": 0.5, "auxiliary_images": 24}
_FEW_STEPS = {"steps": 3}
_GENG = {
    "generator_settings": {"features": 20},
    "generator_synthesis": _FEW_STEPS,
    "generated_per_class": 8,
    "draws": 3,
    "rate": 0.5,
    "networks": 2,
    "extractor_epochs": 1,
    "width": 4,
    "depth": 2,
    "auxiliary_images": 12,
    "expert_width": 4,
    "expert_depth": 2,
    "expert_epochs": 1,
    "expert_steps": 3,
    "expert_rate": 0.5,
}
_VOTES = {
    "generator_settings": {"rounds": 2, "population": 4, "features": 0, "count_weight": 0.3},
    "generator_synthesis": {},
}
_EVERYBODY = {"rate": 1.0, "expert_rate": 1.0}  # nobody is sampled, which is accounted for at once

CASES = (
    Case("dp-merf", settings={"features": 20}, synthesis=_FEW_STEPS),
    Case.of_table("dp-merf", settings={"features": 20}, synthesis=_FEW_STEPS),
    Case.of_table(
        "sps-table", settings={"count_weight": 0.3}, synthesis={"components": 4, "teacher_rows": 300, **_FEW_STEPS}
    ),
    Case.of_table(
        "sps-table",
        "few-levels",
        settings={"pairs": 0.4, "levels": 3, "count_weight": 0.3},
        synthesis={"herding": 0, "teacher_rows": 300, "soft_labels": False, **_FEW_STEPS},
    ),
    Case.of_table(
        "sps-table",
        "no-pairs",
        settings={"pairs": 0.0, "count_weight": 0.3},
        synthesis={"teacher_rows": 0, **_FEW_STEPS},
    ),
    Case.of_table(
        "kip-table", settings={"count_weight": 0.3}, synthesis={"components": 4, "teacher_rows": 300, **_FEW_STEPS}
    ),
    Case.of_table(
        "kip-table",
        "no-pairs",
        settings={"pairs": 0.0, "count_weight": 0.3},
        synthesis={"components": 4, "teacher_rows": 300, "sweeps": 0, **_FEW_STEPS},
    ),
    Case.of_table("column-histograms"),
    Case("sps", settings={"features": 24, "picture": 4}, synthesis=_FEW_STEPS),
    Case("sps", "stages", {"features": 16, "picture": 0, "stages": 3, "count_weight": 0.2}, _FEW_STEPS),
    Case(
        "sps",
        "layers-and-groups",
        {
            "backbone": _tiny_backbone(),
            "features": 8,
            "picture": 2,
            "global_dimensions": 4,
            "class_layers": 1,
            "class_dimensions": 4,
            "thumbnail": 2,
            "groups": 4,
            "classes_per_group": 2,
            "stages": 2,
        },
        _FEW_STEPS,
        (1, 12, 12),
    ),
    Case(
        "sps-published",
        settings={"backbone": _tiny_backbone(), "global_dimensions": 4, "class_layers": 1, "class_dimensions": 4},
        synthesis=_FEW_STEPS,
        shape=(1, 12, 12),
    ),
    Case(  # a backbone that nobody named, built in code, for images that it makes small
        "sps",
        "any-size",
        {"features": 20, "picture": 3, "stages": 2, "class_layers": 1, "class_dimensions": 3},
        _FEW_STEPS,
        (1, 10, 80),
    ),
    Case("kip-moments", settings={"features": 24, "picture": 4}, synthesis=_FEW_STEPS),
    Case(
        "kip-moments",
        "solved-labels",
        {"features": 16, "picture": 0, "stages": 2, "count_weight": 0.2},
        {"labels": "solved", **_FEW_STEPS},
    ),
    Case("dp-kip", settings={"support_per_class": 2, "steps": 3, "rate": 0.5}),
    Case.of_table("dp-kip", settings={"support_per_class": 2, "steps": 3, "rate": 0.5}),
    Case.of_table(
        "dp-kip",
        "marginals",
        settings={"support_per_class": 2, "steps": 3, "rate": 0.5, "marginals": 0.4, "start_steps": 1},
    ),
    Case.of_table("dp-kip", "frozen-table", settings={"support_per_class": 2, "steps": 2, "rate": 1.0, "frozen": 0.3}),
    Case(
        "dp-kip",
        "frozen",
        {"support_per_class": 3, "steps": 2, "rate": 1.0, "frozen": 0.4},
        {"average_last": 2},
        (3, 6, 5),
    ),
    Case(
        "dp-kip",
        "scattering",
        {"support_per_class": 1, "steps": 2, "rate": 0.5, "kernel": "scattering"},
        shape=(1, 9, 8),
    ),
    Case("dp-kip-features", settings={"support_per_class": 2, "steps": 2, "rate": 0.5}, shape=(1, 9, 8)),
    Case(
        "dp-kip-features",
        "frozen",
        {"support_per_class": 2, "steps": 3, "rate": 1.0, "frozen": 0.3, "clip": 1e3},
        shape=(3, 10, 12),
    ),
    Case("dp-cda", settings={"mixtures_per_class": 3, "order": 4, "class_size": 8}),
    Case(
        "dp-cda",
        "as-published",
        {"mixtures_per_class": 2, "order": 3, "class_size": 2, "encoding": "exact", "clip": 0.2},
        {"denoise": False, "spread": "mixtures", "label_noise": 0.3},
        (3, 6, 5),
    ),
    Case.of_table("dp-cda", settings={"mixtures_per_class": 3, "order": 4, "class_size": 8}),
    Case("dp-geng", settings={**_GENG, "expert_steps": 1, "expert_rate": 1.0}, synthesis=_FEW_STEPS, shape=(1, 9, 8)),
    Case(  # the expert's second step depends on the noisy sum of its first
        "dp-geng",
        "adaptive",
        {**_GENG, "expert_norm": "group", "schedule": "coupled", "dimensions": 5, "shares": (1, 2, 3), **_EVERYBODY},
        {"match": "generated", "start": "random", **_FEW_STEPS},
        (3, 8, 10),
        adaptive=True,
    ),
    Case(  # a generator of two stages
        "dp-geng",
        "votes",
        {**_GENG, **_EVERYBODY, "shares": (1, 1, 0), "generator": "private-evolution", **_VOTES},
        _FEW_STEPS,
        (1, 8, 8),
    ),
    Case(
        "private-evolution",
        settings={"rounds": 3, "population": 5, "features": 0, "count_weight": 0.3},
    ),
    Case(
        "private-evolution",
        "features",
        {"rounds": 2, "population": 4, "features": 6, "picture": 2, "threshold": 0.0},
        {"selection": "draw"},
        (3, 9, 10),
    ),
    Case.of_table("private-evolution", settings={"rounds": 3, "population": 6, "count_weight": 0.3}),
    Case("dosser", settings={**_MATCHING, "dimensions": 6}, synthesis=_FEW_STEPS),
    Case(
        "dosser",
        "squares",
        {
            **_MATCHING,
            "dimensions": 6,
            "moments": 2,
            "whitening": 0.7,
            "rate": 1.0,
            "encoding": "exact",
            "subspace_arithmetic": "integer",
        },
        _FEW_STEPS,
    ),
    Case(  # two rounds of votes for auxiliary images
        "dosser",
        "votes",
        {
            **_MATCHING,
            "dimensions": 4,
            "rate": 1.0,
            "auxiliary": "generated",
            "generator": "private-evolution",
            **_VOTES,
        },
        _FEW_STEPS,
        (1, 8, 8),
    ),
    Case("ndpdc", settings={"draws": 4, "width": 4, "rate": 0.5}),
    Case("psg", settings={"draws": 3, "width": 4, "rate": 0.5}),
    Case("dm", settings=_MATCHING, synthesis=_FEW_STEPS, private=False),
    *_evaluation(),
)


def all_cases() -> tuple[Case, ...]:
    """At least one for every registered method, and for every other query."""
    rest = QUERIES.keys() - {case.method for case in CASES}
    return *CASES, *(Case(name) for name in sorted(rest))
