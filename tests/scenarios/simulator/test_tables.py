"""Tables in one process: one source is split over silos, as codes; both modes; and what is said of the evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdd.client.silo import Silo
from dpdd.common.data import formats, made_patients
from dpdd.common.data.table.toml import toml_of
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.simulator.silos import set_up
from dpdd.scenarios.simulator.simulate import run
from dpdd.server.report.verification import checked_run
from dpdd.server.run.scenario import load_scenario

MADE = made_patients.SCHEMA


def study(folder: Path, data: str, more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "study.toml"
    path.write_text(f"""
name = "patients"
{more}
[data]
{data}
[privacy]
epsilon = 8.0
[method]
name = "dp-merf"
mode = "@mode@"
[method.settings]
features = 40
[synthesis]
images_per_class = 6
[synthesis.settings]
steps = 3
""")
    return path


def write_source(folder: Path, count: int = 90) -> None:
    folder.mkdir(exist_ok=True)
    table = {name: list(column[:count]) for name, column in made_patients.raw("test").items()}
    pq.write_table(pa.table({**table, "family": [f"f{at % 9}" for at in range(count)]}), folder / "all.parquet")


@pytest.mark.parametrize("mode", ["centralised", "decentralised"])
def test_a_table_made_in_code_runs_in_both_modes(tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = study(tmp_path / "study", 'dataset = "made-patients"\nrecords_per_silo = 400\nsilos = 2')
    path.write_text(path.read_text().replace("@mode@", mode))
    metrics = run(str(path), load_scenario(str(path)), tmp_path / "run", Console(), noise_seed=1)
    assert "nothing is evaluated: no learner takes rows of a table yet" in capsys.readouterr().err
    product = LabelledSet.load(tmp_path / "run" / "dataset")
    assert product.schema == MADE and not metrics["accuracy"]
    assert np.bincount(product.labels).tolist() == [6, 6] and metrics["dataset"]["rows"] == 12
    card = checked_run(tmp_path / "run").card
    assert card["label"] == "readmitted" and len(card["columns"]) == 13
    assert "12 synthetic rows (13 columns)" in " ".join((tmp_path / "run" / "CARD.md").read_text().split())


def test_one_source_is_split_over_silos_and_tests_by_family(tmp_path: Path) -> None:
    write_source(tmp_path / "study")
    source = (
        'source = { path = "all.parquet", group_column = "family" }\ntest_share = 0.3\npartition = "group"\nsilos = 2'
    )
    path = study(tmp_path / "study", f"{source}\n{toml_of(MADE)}")
    path.write_text(path.read_text().replace("@mode@", "centralised"))
    scenario = load_scenario(str(path))
    test = scenario.test_rows()
    assert test is not None and len(test) == 30 and test.schema == MADE and scenario.test_data() is None
    set_up(scenario, tmp_path / "run", Console(quiet=True))
    parts = [(test.rows, test.labels)]
    for home in sorted((tmp_path / "run" / "silos").iterdir()):
        silo = Silo(home)
        assert silo.settings.data.table == MADE
        read = formats.load(silo.settings.data, silo.folder)
        assert len(read) == 30
        parts.append((read.features[:], read.labels))
    everybody = sorted(np.column_stack(part).tobytes() for part in parts)
    together = np.concatenate([np.column_stack(part) for part in parts])
    whole = made_patients.rows("test").subset(np.arange(90))
    expected = np.column_stack([whole.rows, whole.labels])
    assert len(everybody) == 3 and sorted(together.tolist()) == sorted(expected.tolist())


def test_what_is_for_images_is_refused(tmp_path: Path) -> None:
    for more, sentence in (("[continual]\ntasks = 2", "continual tasks are for images"),):
        path = study(tmp_path / "study", 'dataset = "made-patients"', "")
        path.write_text(path.read_text().replace("@mode@", "centralised") + more)
        with pytest.raises(Exception, match=sentence):
            load_scenario(str(path))
    sps = study(tmp_path / "study", 'dataset = "made-patients"')
    sps.write_text(
        sps.read_text().replace("@mode@", "centralised").replace("dp-merf", "sps").split("[method.settings]")[0]
    )
    with pytest.raises(Exception, match=r"sps takes records of kind image, and data\.shape is that of kind table"):
        run(str(sps), load_scenario(str(sps)), tmp_path / "run", Console(quiet=True))
