"""The section `[evaluation]`: names that exist, keys and values that had another name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from dpdd.common.config import RenamedKeyWarning
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind
from dpdd.server.evaluation.metrics import METRICS
from dpdd.server.evaluation.settings import EvaluationSection, FineTuneSettings, ProbeSettings
from dpdd.server.evaluation.table_learners import TABLE_LEARNERS
from dpdd.server.run.scenario import load_scenario, shipped


def test_defaults() -> None:
    section = EvaluationSection()
    assert (section.learners_of(DataKind.IMAGE), section.labels) == (("convnet-dd", "convnet"), "teacher")
    assert section.metrics_of(DataKind.IMAGE) == ("accuracy", "balanced-accuracy", "macro-roc-auc")
    assert section.learners_of(DataKind.TABLE) == tuple(each.name for each in TABLE_LEARNERS)
    assert section.metrics_of(DataKind.TABLE) == tuple(METRICS)
    assert section.rows == 10_000


def test_a_learner_takes_one_kind_of_records() -> None:
    for kind, names in ((DataKind.IMAGE, ("probe", "convnet")), (DataKind.TABLE, ("mlp", "lda"))):
        section = EvaluationSection(learners=names, metrics=("f1",))
        section.check_kind(kind)
        assert (section.learners_of(kind), section.metrics_of(kind)) == (names, ("f1",))
    with pytest.raises(ConfigError, match=r"probe learns from images.* a table; for a table there are logistic-regr.*"):
        EvaluationSection(learners=("probe",)).check_kind(DataKind.TABLE)
    with pytest.raises(
        ConfigError, match=r"mlp learns from a table.* images; for images there are convnet-dd, convnet"
    ):
        EvaluationSection(learners=("convnet", "mlp")).check_kind(DataKind.IMAGE)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            {"learners": ["convnet", "resnet"]},
            "no learner 'resnet'; known are convnet-dd, convnet, convnet-pool, probe",
        ),
        ({"learners": ["teacher"]}, "no learner 'teacher'"),
        ({"metrics": ["accuracy", "f2"]}, "no metric 'f2'; known are accuracy, balanced-accuracy, macro-roc-auc"),
        ({"labels": "firm"}, "'teacher', 'soft' or 'hard'"),
        ({"learners": ["ensemble"], "runs": 1}, "ensemble needs at least 2 networks: ask for runs = 2"),
    ],
)
def test_what_is_not_there_is_refused(values: Mapping[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        EvaluationSection.model_validate(values)


def test_an_ensemble_of_one_is_refused_only_if_it_is_trained() -> None:
    for runs in (0, 2):
        assert EvaluationSection(learners=("ensemble",), runs=runs).runs == runs


def test_learners_own_settings_are_checked() -> None:
    with pytest.raises(ValidationError):
        FineTuneSettings(steps=0)
    with pytest.raises(ValidationError):
        ProbeSettings.model_validate({"copys": 2})


SCENARIO = """
name = "asks"
[data]
dataset = "fashion-slice"
[method]
name = "dp-merf"
[evaluation]
"""


def test_a_scenario_names_the_key_and_the_known_learners(tmp_path: Path) -> None:
    (tmp_path / "asks.toml").write_text(SCENARIO + 'learners = ["oracle"]')
    with pytest.raises(ConfigError, match=r"evaluation\.learners: there is no learner 'oracle'; known are convnet-dd"):
        load_scenario(str(tmp_path / "asks.toml"))
    (tmp_path / "asks.toml").write_text(SCENARIO + 'learners = ["mlp"]')
    with pytest.raises(ConfigError, match=r"asks\.toml: evaluation\.learners: mlp learns from a table"):
        load_scenario(str(tmp_path / "asks.toml"))


def test_old_keys_are_read_with_a_warning(tmp_path: Path) -> None:
    old = 'downstream = ["convnet", "probe"]\nlessons = 7\nlabels = "lessons"\n'
    new = 'learners = ["convnet", "probe"]\naugmentations = 7\nlabels = "teacher"\n'
    (tmp_path / "old.toml").write_text(SCENARIO + old)
    (tmp_path / "new.toml").write_text(SCENARIO + new)
    with pytest.warns(RenamedKeyWarning) as said:
        before = load_scenario(str(tmp_path / "old.toml")).evaluation
    assert sorted(str(warning.message).removeprefix(f"{tmp_path / 'old.toml'}: ") for warning in said) == [
        "evaluation.downstream is called learners now",
        'evaluation.labels = "lessons" is called "teacher" now',
        "evaluation.lessons is called augmentations now",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_scenario(str(tmp_path / "new.toml")).evaluation == before
    assert (before.learners, before.augmentations, before.labels) == (("convnet", "probe"), 7, "teacher")
    with pytest.raises(ValidationError, match="leave lessons out"):
        EvaluationSection.model_validate({"lessons": 7, "augmentations": 7})


def test_shipped_scenarios_have_the_new_keys() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", r".*evaluation\.")
        sections = {name: load_scenario(name).evaluation for name in shipped()}
    assert sections["cifar10-5-silos"].learners == ("convnet-dd", "convnet", "probe")
    assert sections["quickstart"].augmentations == 5000
    assert (sections["quickstart"].convnet_dd.width, sections["dosser-fashion"].convnet_dd.width) == (32, 128)
