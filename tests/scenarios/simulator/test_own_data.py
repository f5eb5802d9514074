"""A study on data that is no benchmark, in one process: split by patient, evaluated, resumed from its copy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.silo import Silo
from dpdd.common.data import benchmarks, formats
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.progress import Console
from dpdd.common.randomness import uniforms
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.scenarios.cli import main
from dpdd.scenarios.simulator.inprocess import grid_of
from dpdd.scenarios.simulator.silos import set_up, write_silo
from dpdd.server.app import run_on
from dpdd.server.run.folder import keep_scenario, scenario_of
from dpdd.server.run.scenario import load_scenario
from tests.common.own_files import CLASSES, striped, write_folder, write_npz
from tests.scenarios.tiny_runs import releases


def study(folder: Path, data: str, more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(f"""
name = "stripes"
[data]
kind = "image"
classes = {json.dumps(CLASSES)}
{data}
[privacy]
epsilon = 10.0
[method]
name = "dp-merf"
[method.settings]
features = 16
count_weight = 0.5
[synthesis]
images_per_class = 4
[synthesis.settings]
steps = 10
batch = 10
[evaluation]
runs = 1
steps = 3
width = 4
convnet_dd = {{ runs = 1, width = 4, steps = 2 }}
{more}""")
    return folder / "study.toml"


def held(folder: Path) -> dict[str, LabelledRecords]:
    """What each simulated silo reads from its folder."""
    silos = [Silo(path) for path in sorted((folder / "silos").iterdir())]
    return {silo.settings.name: formats.load(silo.settings.data, silo.folder) for silo in silos}


def seen(records: LabelledRecords) -> set[tuple[bytes, int]]:
    features = np.asarray(records.features[:])
    return {(features[row].tobytes(), int(records.labels[row])) for row in range(len(records))}


BY_PATIENT = """
shape = [1, 12, 12]
test = "public/test.npz"
source = { path = "all.npz", groups_key = "patients" }
partition = "group"
"""


def test_patients_stay_together_and_a_run_is_resumed_from_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = tmp_path / "study", tmp_path / "run"
    study(home, BY_PATIENT)
    written = striped(90, patients=9)
    write_npz(home / "all.npz", written, names=True)
    (home / "public").mkdir()
    write_npz(home / "public" / "test.npz", striped(30, patients=2, seed=1))
    monkeypatch.chdir(home)
    assert main(["run", "study.toml", "--out", str(out), "--quiet"]) == 0
    assert written.groups is not None
    patients = {image.tobytes(): group for image, group in zip(written.features, written.groups, strict=True)}
    silos = held(out)
    assert set().union(*map(seen, silos.values())) == seen(written) and sum(map(len, silos.values())) == 90
    owners = [{patients[pixels] for pixels, _ in seen(records)} for records in silos.values()]
    assert sum(map(len, owners)) == 9 == len(set().union(*owners)), "no patient is in two silos"
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["accuracy"]["convnet"]["mean"] >= 0 and len(metrics["privacy"]) == 3
    dataset = LabelledSet.load(out / "dataset")
    assert dataset.classes == CLASSES and dataset.images.shape == (12, 1, 12, 12)

    # The coordinator's own run of the same file, over a grid of the same silos; then from the copy, from elsewhere.
    real = tmp_path / "hub" / "stripes"
    keep_scenario(load_scenario("study.toml"), Path("study.toml"), real)
    monkeypatch.chdir(tmp_path)
    (real / "silos.json").write_bytes((out / "silos.json").read_bytes())
    silent, copy = Console(quiet=True), scenario_of(Path("hub") / "stripes")
    grid = grid_of([Silo(path) for path in sorted((out / "silos").iterdir())], silent)
    first = run_on(grid, str(copy), real, SynthesisRunner(workers=1), silent)
    keep_scenario(load_scenario(str(copy)), copy, real)  # what `resume` does
    again = run_on(grid_of([], silent), str(copy), real, SynthesisRunner(workers=1), silent)
    assert first["dataset"] == again["dataset"] == metrics["dataset"], "the same releases, so the same images"
    assert first["accuracy"] == again["accuracy"] == metrics["accuracy"], "on the same test data"


def test_a_folder_on_the_command_line_with_a_test_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = striped(60, patients=6, side=9, channels=3)
    write_folder(tmp_path / "scans", written)
    path, out = study(tmp_path / "study", "shape = [3, 9, 9]\ntest_share = 0.2\nsilos = 3"), tmp_path / "run"
    assert main(["run", str(path), "--out", str(out), "--quiet"]) == 3
    assert "data.source" in (err := capsys.readouterr().err) and "--source" in err and len(err.splitlines()) == 1
    command = ["run", str(path), "--out", str(out), "--source", str(tmp_path / "scans"), "--quiet"]
    assert main(command) == 0
    before, first = releases(out), json.loads((out / "metrics.json").read_text())
    silos = held(out)
    assert [len(records) for records in silos.values()] == [16, 16, 16]
    assert seen(written) > set().union(*map(seen, silos.values()))
    assert main(command) == 0 and releases(out) == before
    assert json.loads((out / "metrics.json").read_text())["accuracy"] == first["accuracy"]
    assert main([*command, "--fresh"]) == 0 and releases(out) != before


def test_without_test_data_there_is_a_dataset_and_a_card_and_a_line_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = study(tmp_path, 'shape = [1, 12, 12]\nsource = "all.npz"\nsilos = 2'), tmp_path / "run"
    write_npz(tmp_path / "all.npz", striped(150, patients=3))
    assert main(["run", str(path), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.err.count("nothing is evaluated: the scenario has no test data (data.test)") == 1
    assert json.loads((out / "metrics.json").read_text())["accuracy"] == {}
    assert (out / "CARD.md").exists() and len(LabelledSet.load(out / "dataset")) == 12


def test_tasks_of_own_data_without_test_data(tmp_path: Path) -> None:
    more = '[continual]\ntasks = [["flat", "7"], ["rows", "columns"]]\njoint = false\n'
    path = study(tmp_path, 'shape = [1, 12, 12]\nsource = "all.npz"\nsilos = 2', more)
    path.write_text(
        path.read_text().replace('"flat", "rows", "columns"]\nshape', '"flat", "rows", "columns", "7"]\nshape')
    )
    some = striped(240, patients=3)
    names = np.where(np.arange(240) % 4 == 3, "7", np.array(CLASSES)[some.labels])
    np.savez(tmp_path / "all.npz", images=some.features, labels=names)
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    read = held(tmp_path / "run")
    assert sorted(read) == ["east-task-1", "east-task-2", "north-task-1", "north-task-2"]
    sevens = sum(int((records.labels == 1).sum()) for name, records in read.items() if name.endswith("1"))
    assert sevens == 60, "a class that is called like a number keeps its records"


@pytest.mark.parametrize(
    ("classes", "form"),
    [
        (("cat", "dog"), "idx"),
        (tuple("0123456789"), "idx"),
        (("1", "0"), "npz"),
        (("3", "cat"), "npz"),
        (tuple(f"kind {number}" for number in range(300)), "npz"),
        (("κύτταρο", 'say "a\\b"', "🩸"), "idx"),
    ],
)
def test_a_simulated_silo_reads_back_what_was_written(tmp_path: Path, classes: tuple[str, ...], form: str) -> None:
    labels = np.arange(2 * len(classes), dtype=np.int64) % len(classes)
    pixels = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (len(labels), 1, 8, 8), dtype=np.uint8)
    scenario = load_scenario("quickstart")
    for name, features in (
        ("bytes", pixels),
        ("floats", (pixels / 255).astype(np.float32)),
        ("rgb", pixels.repeat(3, 1)),
    ):
        write_silo(tmp_path / name, name, scenario, LabelledRecords(features, labels), classes)
        silo = Silo.initialise(tmp_path / name)
        read = formats.load(silo.settings.data, silo.folder)
        assert silo.settings.data.format == (form if name == "bytes" else "npz")
        assert silo.settings.data.classes == classes and read.features.dtype == features.dtype
        np.testing.assert_array_equal(read.labels, labels)
        np.testing.assert_array_equal(read.features[:], features)


def test_silos_of_a_benchmark_hold_what_they_held_before_there_was_other_data(tmp_path: Path) -> None:
    scenario = load_scenario("quickstart")
    data = scenario.data.model_copy(update={"records_per_silo": 40})
    silos = set_up(scenario.model_copy(update={"data": data}), tmp_path, Console(quiet=True))
    assert {path.name for path in silos[0].folder.iterdir()} >= {"images.idx", "labels.idx", "silo.toml"}
    train = benchmarks.load("fashion-slice", "train")
    order = np.argsort(uniforms(scenario.seed, "partition", len(train)), kind="stable")
    for name, share in zip(("north", "east", "south"), np.array_split(order, 3), strict=True):
        read, expected = held(tmp_path)[name], train.subset(np.sort(share)[:40])
        np.testing.assert_array_equal(read.features[:], expected.images)
        np.testing.assert_array_equal(read.labels, expected.labels)
