"""One wrong thing at a time, told in one sentence before a port is open or a silo made."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdd.common.data import made_patients
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.methods.base import DataKind
from dpdd.common.methods.registry import METHODS
from dpdd.common.progress import Console
from dpdd.scenarios.cli import main as simulate
from dpdd.server.evaluation import table_learners
from dpdd.server.run.checks import backbone_in_words, check_before_asking
from dpdd.server.run.scenario import Scenario
from dpdd.server.transport import running
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.service import Address
from tests.common.own_files import CLASSES, striped, write_npz

SPS = {"name": "sps", "settings": {"backbone": "scatter28"}}


def scenario(test: Path | str | None, **changes: Any) -> Scenario:
    """A scenario with nothing wrong; `data.key` changes a key of a section."""
    data: dict[str, Any] = {"classes": CLASSES, "shape": [1, 28, 28]} | ({} if test is None else {"test": str(test)})
    values: dict[str, Any] = {"name": "own", "data": data, "method": {"name": "dp-merf"}}
    for name, value in changes.items():
        values[name] = {**values.get(name, {}), **value}
    return Scenario.model_validate(values)


@pytest.fixture
def test_file(tmp_path: Path) -> Path:
    return write_npz(tmp_path / "test.npz", striped(12, patients=3, side=28))


TABLE = {"data": {"dataset": "made-patients", "classes": None, "shape": None}}


def test_a_table_is_evaluated_only_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_before_asking(scenario(None, **TABLE))
    monkeypatch.setattr(table_learners, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^evaluating a table needs scikit-learn and XGBoost: pip install 'dpdd\[tab"
    ):
        check_before_asking(scenario(None, **TABLE))
    check_before_asking(scenario(None, **TABLE, evaluation={"runs": 0}))
    check_before_asking(scenario(None))
    monkeypatch.setattr(table_learners, "find_spec", lambda name: name == "sklearn" or None)
    check_before_asking(scenario(None, **TABLE, evaluation={"learners": ["lda", "mlp"]}))
    with pytest.raises(ConfigError, match=r"^evaluating a table needs XGBoost: pip install"):
        check_before_asking(scenario(None, **TABLE, evaluation={"learners": ["lda", "xgboost"]}))


def test_test_rows_of_one_class_are_refused(tmp_path: Path) -> None:
    table = {name: column[:40] for name, column in made_patients.raw("test").items()}
    table["readmitted"] = ["no"] * 40
    pq.write_table(pa.table(table), tmp_path / "test.parquet")
    data = {**made_patients.SCHEMA.model_dump(mode="json"), "classes": None, "shape": None}
    with pytest.raises(ConfigError, match="test data are all of one class"):
        check_before_asking(scenario(tmp_path / "test.parquet", data=data))


def test_nothing_is_wrong(test_file: Path) -> None:
    check_before_asking(scenario(test_file))
    check_before_asking(scenario(None, data={"shape": [3, 64, 48]}))
    check_before_asking(scenario(test_file, method=SPS, evaluation={"learners": ["convnet", "probe"]}))
    check_before_asking(scenario(test_file, method={"name": "dp-merf", "mode": "decentralised"}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": {"classes": ["flat", "rows"]}}, r"^data\.test: .*record 3 is none of the 2 classes"),
        ({"data": {"shape": [3, 28, 28]}}, r"^data\.test: .*has shape \(12, 1, 28, 28\)"),
        ({"data": {"test": "nowhere.npz"}}, r"^data\.test: .*nowhere\.npz"),
        ({"data": {"classes": [*CLASSES, "x" * 1000]}}, "^silos could not read the request: .*class"),
        ({"method": {"name": "sps", "settings": {"backbone": "scatter82"}}}, "no backbone 'scatter82'"),
        ({"method": {"name": "sps", "settings": {"backbone": "rgb32"}}}, "rgb32 is for images of 3 channels.* has 1"),
        (
            {"method": {"name": "sps", "settings": {"backbone": "gray28", "features": 2048}}},
            "gray28 has .* features, not 2048",
        ),
        (
            {"data": {"shape": [1, 4, 4], "test": None}, "method": {"name": "dosser"}},
            r"networks of depth 3 are not for records of shape \(1, 4, 4\)",
        ),
        ({"evaluation": {"learners": ["probe"]}}, "asks for probe, and dp-merf has no public backbone"),
        ({"evaluation": {"learners": ["probe"], "backbone": "rgb32"}}, "1 channels.*made for 3"),
        (
            {"method": SPS, "evaluation": {"learners": ["fine-tune"]}},
            "scatter28 was never trained, so there is nothing to fine-tune",
        ),
        ({"continual": {"tasks": [["flat", "rows"], ["columns", "dots"]]}}, "continual.tasks: 'dots'"),
        ({"data": {"dataset": "fasion", "classes": None, "shape": None, "test": None}}, "no dataset 'fasion'"),
    ],
)
def test_one_wrong_thing_is_one_sentence(test_file: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DpddError, match=sentence) as error:
        check_before_asking(scenario(test_file, **changes))
    assert "\n" not in str(error.value)


def test_a_backbone_for_another_size_is_named(tmp_path: Path) -> None:
    from dpdd.common.models.backbone import Provenance, save
    from dpdd.common.models.scattering import ScatteringArchitecture, ScatteringNet

    network = ScatteringNet(ScatteringArchitecture(channels=1, height=16, width=16))
    save(tmp_path / "small", network, Provenance("none", "none", 0.0, "none", 0))
    method = {"name": "sps", "settings": {"backbone": str(tmp_path / "small")}}
    with pytest.raises(DpddError, match=r"small does not fit data\.shape: .*images of 16 x 16 pixels, not 28 x 28"):
        check_before_asking(scenario(None, method=method))


def test_test_data_that_cannot_be_evaluated_with(tmp_path: Path) -> None:
    some = striped(12, patients=3, side=4)
    one = LabelledRecords(some.features, np.zeros(12, np.int64), some.groups)
    path, shape = tmp_path / "x.npz", {"shape": [1, 4, 4]}
    with pytest.raises(DpddError, match="test data are all of one class"):
        check_before_asking(scenario(write_npz(path, one), data=shape))
    with pytest.raises(DpddError, match="convnet, which takes images from 8 x 8 pixels on, not 4 x 4"):
        check_before_asking(scenario(write_npz(path, some), data=shape))
    check_before_asking(scenario(path, data=shape, evaluation={"runs": 0}))
    classes = [*CLASSES, "dots", "waves"]
    tasks = {"data": {"classes": classes, **shape}, "continual": {"tasks": [classes[:3], classes[3:]]}}
    with pytest.raises(DpddError, match=r"no image of task 2 \(dots, waves\)"):
        check_before_asking(scenario(path, **tasks))


def test_a_method_for_another_kind_of_data_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = dataclasses.replace(METHODS["dp-merf"], data_kinds=frozenset({DataKind.TABLE}))
    monkeypatch.setitem(METHODS, "dp-merf", tables)  # type: ignore[arg-type]
    with pytest.raises(DpddError, match=r"dp-merf takes records of kind table, and data\.shape is that of kind image"):
        check_before_asking(scenario(None))


def test_which_backbone_is_used_is_said() -> None:
    assert backbone_in_words(scenario(None)) is None
    assert backbone_in_words(scenario(None, method=SPS)) == "public backbone: scatter28"
    unnamed = backbone_in_words(scenario(None, method={"name": "sps"}))
    assert unnamed is not None and unnamed.endswith("(none was named: the one for images of 1 x 28 x 28)")


def test_a_default_backbone_does_not_stop_a_scenario_of_another_shape_from_being_read() -> None:
    read = scenario(None, data={"shape": [3, 64, 64]}, method={"name": "sps"})
    assert read.schema.shape == (3, 64, 64)


WRONG = f"""
name = "wrong"
[data]
classes = {list(CLASSES)}
shape = [1, 28, 28]
test = "nowhere.npz"
source = "all.npz"
[method]
name = "dp-merf"
"""


def test_the_server_checks_before_it_listens_or_keeps_anything(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(WRONG)
    coordinator = Coordinator.initialise(tmp_path / "hub")
    try:
        with pytest.raises(DpddError, match=r"^data\.test: "):
            running.run(coordinator, path, tmp_path / "run", Console(quiet=True), address=Address(port=0, join_port=0))
        assert coordinator.serving() is None and not (tmp_path / "run").exists()
    finally:
        coordinator.close()


def test_the_simulator_checks_before_it_makes_silos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.toml").write_text(WRONG)
    write_npz(tmp_path / "all.npz", striped(12, patients=3, side=28))
    assert simulate(["run", str(tmp_path / "wrong.toml"), "--out", str(tmp_path / "run"), "--quiet"]) == 4
    assert "data.test: " in capsys.readouterr().err and not (tmp_path / "run").exists()
