"""Tables in one process: one source is split over silos, as codes; both modes; and their evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdd.client.silo import Silo
from dpdd.common.data import formats, made_patients
from dpdd.common.data.table.toml import toml_of
from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.cli import main
from dpdd.scenarios.simulator.real_records import rows_of
from dpdd.scenarios.simulator.silos import set_up
from dpdd.scenarios.simulator.simulate import run
from dpdd.server.evaluation.metrics import METRICS
from dpdd.server.evaluation.scoring import evaluate
from dpdd.server.publish.export import export
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
[evaluation]
learners = ["logistic-regression", "decision-tree"]
""")
    return path


def write_source(folder: Path, count: int = 90) -> None:
    folder.mkdir(exist_ok=True)
    table = {name: list(column[:count]) for name, column in made_patients.raw("test").items()}
    pq.write_table(pa.table({**table, "family": [f"f{at % 9}" for at in range(count)]}), folder / "all.parquet")


@pytest.mark.parametrize("mode", ["centralised", "decentralised"])
def test_a_table_made_in_code_runs_in_both_modes(tmp_path: Path, mode: str) -> None:
    path = study(tmp_path / "study", 'dataset = "made-patients"\nrecords_per_silo = 400\nsilos = 2')
    path.write_text(path.read_text().replace("@mode@", mode))
    metrics = run(str(path), load_scenario(str(path)), tmp_path / "run", Console(), noise_seed=1)
    product = LabelledSet.load(tmp_path / "run" / "dataset")
    assert product.schema == MADE and list(metrics["accuracy"]) == ["logistic-regression", "decision-tree"]
    expected = evaluate(product, made_patients.rows("test"), load_scenario(str(path)).evaluation, None, seed=0)
    assert metrics["accuracy"] == expected["accuracy"] and metrics["metrics"] == expected["metrics"]
    assert list(metrics["metrics"]) == [name for name in METRICS if name != "accuracy"] and "real" not in metrics
    assert np.bincount(product.labels).tolist() == [6, 6] and metrics["dataset"]["rows"] == 12
    card = checked_run(tmp_path / "run").card
    assert card["label"] == "readmitted" and len(card["columns"]) == 13
    text = (tmp_path / "run" / "CARD.md").read_text()
    assert "12 synthetic rows (13 columns)" in " ".join(text.split())
    assert "mean of 2 learners" in text and "Measured on the test data of made-patients" in text
    assert card["evaluation"]["mean_over_learners"] == metrics["mean_over_learners"]
    facts = metrics["fidelity"]
    assert (facts["rows"], facts["real_rows"], facts["pairs"]) == (12, 4000, 91) and card["fidelity"] == facts
    assert 0.0 < facts["one_way"] < facts["two_way"] < facts["three_way"] < 1.0
    assert "distance to 4000 test rows" in text and "](dataset/marginals.png)" in text
    out = tmp_path / "export"
    export(tmp_path / "run", card, out, checked_run(tmp_path / "run").requests)
    picture = (out / "dataset" / "marginals.png").read_bytes()
    assert picture == (tmp_path / "run" / "dataset" / "marginals.png").read_bytes() and checked_run(out)


def test_without_an_evaluation_the_picture_has_synthetic_rows_alone(tmp_path: Path) -> None:
    data = 'dataset = "made-patients"\nrecords_per_silo = 400\nsilos = 1'
    path = study(tmp_path / "study", data)
    path.write_text(path.read_text().replace("@mode@", "centralised").replace("[evaluation]", "[evaluation]\nruns = 0"))
    metrics = run(str(path), load_scenario(str(path)), tmp_path / "run", Console(quiet=True), noise_seed=1)
    card = checked_run(tmp_path / "run").card
    assert "fidelity" not in metrics and "fidelity" not in card
    assert card["marginals"] == "dataset/marginals.png" and (tmp_path / "run" / "dataset" / "marginals.png").exists()


def test_silos_may_differ_in_a_column(tmp_path: Path) -> None:
    data = 'dataset = "made-patients"\nsilos = 3\npartition = "dirichlet"\npartition_by = "diagnosis"\nalpha = 0.2'
    path = study(tmp_path / "study", data)
    path.write_text(path.read_text().replace("@mode@", "centralised"))
    set_up(load_scenario(str(path)), tmp_path / "run", Console(quiet=True))
    at = [column.name for column in MADE.features].index("diagnosis")
    counts = []
    for home in sorted((tmp_path / "run" / "silos").iterdir()):
        silo = Silo(home)
        counts.append(
            np.bincount(formats.load(silo.settings.data, silo.folder).features[:][:, at].astype(int), minlength=5)
        )
    assert np.sum(counts) == 12_000 and (np.array(counts) / np.sum(counts, axis=0)).max() > 0.8


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


def test_a_share_of_the_source_judges_and_real_rows_stand_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_source(tmp_path / "study", 600)
    path = study(
        tmp_path / "study", f'source = "all.parquet"\ntest_share = 0.5\nrecords_per_silo = 90\n{toml_of(MADE)}'
    )
    path.write_text(path.read_text().replace("@mode@", "centralised"))
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--noise-seed", "1", "--quiet", "--real"]) == 0
    said = capsys.readouterr().out
    assert "for comparison, trained on 270 real records" in said and said.count("mean of 2 learners") == 2
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    scenario = load_scenario(str(path))
    silos = [Silo(home) for home in sorted((tmp_path / "run" / "silos").iterdir())]
    real, test = rows_of(silos, scenario), scenario.test_rows()
    assert test is not None and len(real) == 270 and len(test) == 300
    whole = {row.tobytes() for row in np.column_stack([test.rows, test.labels])}
    assert sum(row.tobytes() in whole for row in np.column_stack([real.rows, real.labels])) < 10, "others than tested"
    expected = evaluate(real, test, scenario.evaluation, None, scenario.seed)
    assert metrics["real"]["metrics"] == expected["metrics"] and metrics["real"]["records"] == 270
    assert metrics["real"]["accuracy"]["decision-tree"]["runs"] == expected["accuracy"]["decision-tree"]["runs"]
    assert metrics["real"]["accuracy"]["decision-tree"]["mean"] > 0.6
    assert "real" not in checked_run(tmp_path / "run").card, "exact figures of private records are in no card"


def test_a_reference_needs_an_evaluation_of_rows(tmp_path: Path) -> None:
    path = study(tmp_path / "study", 'dataset = "made-patients"')
    path.write_text(path.read_text().replace("@mode@", "centralised").replace("[evaluation]", "[evaluation]\nruns = 0"))
    with pytest.raises(ConfigError, match="--real goes with an evaluation, and this scenario has none"):
        run(str(path), load_scenario(str(path)), tmp_path / "run", Console(quiet=True), real=True)
    with pytest.raises(ConfigError, match="this scenario's records are images"):
        run("quickstart", load_scenario("quickstart"), tmp_path / "run", Console(quiet=True), real=True)
    assert not (tmp_path / "run").exists()


def test_a_table_without_test_data_says_that_nothing_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_source(tmp_path / "study")
    path = study(tmp_path / "study", f'source = "all.parquet"\nsilos = 2\n{toml_of(MADE)}')
    path.write_text(path.read_text().replace("@mode@", "centralised"))
    metrics = run(str(path), load_scenario(str(path)), tmp_path / "run", Console(), noise_seed=1)
    assert "nothing is evaluated: the scenario has no test data" in capsys.readouterr().err
    assert metrics["accuracy"] == {} and "mean_over_learners" not in metrics


def test_what_is_for_images_is_refused(tmp_path: Path) -> None:
    for more, sentence in (
        ("[continual]\ntasks = 2", "continual tasks are for images"),
        ('[evaluation]\nlearners = ["probe"]', r"evaluation\.learners: probe learns from images"),
        ('[evaluation.at_silos]\nepsilon = 1.0\nmodels = ["convnet"]', r"evaluation\.at_silos\.models names convnet"),
    ):
        path = study(tmp_path / "study", 'dataset = "made-patients"', "")
        text = path.read_text().replace("@mode@", "centralised")
        path.write_text((text.split("[evaluation]")[0] if "evaluation" in sentence else text) + more)
        with pytest.raises(Exception, match=sentence):
            load_scenario(str(path))
    sps = study(tmp_path / "study", 'dataset = "made-patients"')
    sps.write_text(
        sps.read_text().replace("@mode@", "centralised").replace("dp-merf", "sps").split("[method.settings]")[0]
    )
    with pytest.raises(Exception, match=r"sps takes records of kind image, and data\.shape is that of kind table"):
        run(str(sps), load_scenario(str(sps)), tmp_path / "run", Console(quiet=True))
