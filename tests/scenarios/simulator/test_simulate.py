"""The whole path in one process: silos, ClientApp, ServerApp, dataset, evaluation, card, metrics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpdd.client.silo import Silo
from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet, file_sha256
from dpdd.common.wire.release import open_signed
from dpdd.scenarios.cli import main
from dpdd.scenarios.simulator.silos import set_up
from dpdd.server.cli import main as server
from dpdd.server.run.scenario import Scenario, load_scenario, shipped
from tests.scenarios.tiny_runs import releases

SMALL = """
name = "small"
summary = "three tiny silos"
[data]
dataset = "fashion-slice"
silos = 3
records_per_silo = {records}
[privacy]
epsilon = {epsilon}
[method]
name = "dp-merf"
[method.settings]
features = 64
[synthesis]
images_per_class = 4
[synthesis.settings]
steps = 5
batch = 20
[evaluation]
runs = 2
width = 8
steps = 5
batch = 16
convnet_dd = {{ runs = 1, width = 4, steps = 2 }}
"""


def scenario_file(folder: Path, records: int = 2000, epsilon: str = "1.0") -> Path:
    path = folder / "small.toml"
    path.write_text(SMALL.format(records=records, epsilon=epsilon))
    return path


def test_a_small_run_leaves_everything_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["run", str(scenario_file(tmp_path)), "--out", str(out), "--quiet", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics == json.loads((out / "metrics.json").read_text())
    assert set(metrics["accuracy"]["convnet"]) >= {"mean", "std", "runs"}
    assert len(metrics["accuracy"]["convnet"]["runs"]) == 2
    assert next(iter(metrics["accuracy"])) == "convnet-dd", "the literature's protocol stands first"
    assert metrics["accuracy"]["convnet-dd"]["labels"] == "hard" and len(metrics["accuracy"]["convnet-dd"]["runs"]) == 1
    assert [row["silo"] for row in metrics["privacy"]] == ["east", "north", "south"]
    for row in metrics["privacy"]:
        assert (row["epsilon"], row["delta"], row["releases"], row["releasable"]) == (1.0, 1e-5, 1, True)
        assert "add or remove" in row["neighbours"] and row["accountant"]
    assert metrics["dataset"]["classes"] == 10 and metrics["dataset"]["images_per_class"] == 4
    assert metrics["dataset"]["sha256"] == file_sha256(out / "dataset" / "dataset.safetensors")
    assert set(metrics["seconds"]) == {"releases", "synthesis", "evaluation"}
    dataset = LabelledSet.load(out / "dataset")
    assert dataset.images.shape == (40, 1, 28, 28) and np.bincount(dataset.labels).tolist() == [4] * 10
    assert len(dataset.as_torch()) == 40 and dataset.as_huggingface()[0]["label"] == 0
    assert Image.open(out / "dataset" / "preview.png").size[0] > 100
    card = (out / "CARD.md").read_text()
    assert "north" in card and metrics["dataset"]["sha256"] in card
    report = (out / "report.html").read_text()
    assert f"dpdd-sim run {scenario_file(tmp_path)} --out {out}" in report and "from 50 % to at most 73.2 %" in report
    assert server(["verify", str(out)]) == 0


def test_running_again_reuses_the_releases_and_fresh_starts_over(tmp_path: Path) -> None:
    scenario, out = scenario_file(tmp_path), tmp_path / "run"
    arguments = ["run", str(scenario), "--out", str(out), "--quiet"]
    assert main(arguments) == 0
    first = releases(out)
    assert len(first) == 3
    assert main(arguments) == 0
    assert releases(out) == first
    assert main([*arguments, "--fresh"]) == 0
    assert not set(releases(out).values()) & set(first.values())


def test_a_second_question_meets_an_empty_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, out = scenario_file(tmp_path), tmp_path / "run"
    assert main(["run", str(scenario), "--out", str(out), "--quiet"]) == 0
    scenario.write_text(scenario.read_text().replace("features = 64", "features = 65"))
    assert main(["run", str(scenario), "--out", str(out), "--quiet"]) == 1
    assert "over budget" in capsys.readouterr().err


def test_verify_notices_an_altered_dataset_and_an_altered_guarantee(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["run", str(scenario_file(tmp_path)), "--out", str(out), "--quiet"]) == 0
    card = json.loads((out / "card.json").read_text())
    card["silos"][0]["epsilon"] = 0.1
    kept = (out / "card.json").read_text()
    (out / "card.json").write_text(json.dumps(card))
    assert server(["verify", str(out)]) != 0
    (out / "card.json").write_text(kept)
    data = bytearray((out / "dataset" / "dataset.safetensors").read_bytes())
    data[-1] ^= 1
    (out / "dataset" / "dataset.safetensors").write_bytes(data)
    assert server(["verify", str(out)]) != 0
    assert "not the one in the card" in capsys.readouterr().err


def test_without_noise_any_number_of_silos_gives_the_same_sums(tmp_path: Path) -> None:
    totals = []
    for silos in (1, 3):
        folder = tmp_path / str(silos)
        folder.mkdir()
        path = scenario_file(folder, records=600 // silos, epsilon="inf")
        path.write_text(path.read_text().replace("silos = 3", f"silos = {silos}").replace("runs = 2", "runs = 0"))
        scenario = load_scenario(str(path))
        federation = set_up(all_records(scenario, silos), folder / "run", Console(quiet=True))
        request = simulate_request(scenario)
        answers = [open_signed(silo.answer(request).data) for silo in federation]  # type: ignore[union-attr]
        assert not any(release.releasable for release in answers)
        totals.append(sum(release.arrays["embedding"] for release in answers))
    np.testing.assert_array_equal(totals[0], totals[1])


def all_records(scenario: Scenario, silos: int) -> Scenario:
    """The same 18,000 records, whatever the number of silos."""
    return scenario.model_copy(
        update={"data": scenario.data.model_copy(update={"records_per_silo": None, "silos": silos})}
    )


def simulate_request(scenario: Scenario) -> bytes:
    from dpdd.server.run.pipeline import make_request

    return make_request(scenario).encode()


def test_a_noise_seed_marks_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    command = ["run", str(scenario_file(tmp_path)), "--out", str(out), "--noise-seed", "5", "--quiet"]
    assert main(command) == 0
    assert "protects nobody" in capsys.readouterr().out
    assert "protects nobody" in (out / "CARD.md").read_text()
    assert not open_signed(next(iter(releases(out).values()))).releasable


def test_a_silo_in_trouble_is_named_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, out = scenario_file(tmp_path), tmp_path / "run"
    set_up(load_scenario(str(scenario)), out, Console(quiet=True))
    (out / "silos" / "east" / "images.idx").write_bytes(b"broken")
    assert main(["run", str(scenario), "--out", str(out)]) == 0
    assert "could not answer" in capsys.readouterr().err
    metrics = json.loads((out / "metrics.json").read_text())
    assert [row["silo"] for row in metrics["privacy"]] == ["north", "south"]
    assert json.loads((out / "card.json").read_text())["silos_without_release"]


def test_only_a_simulation_folder_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("x")
    command = ["run", str(scenario_file(tmp_path)), "--out", str(tmp_path / "precious"), "--fresh", "--quiet"]
    assert main(command) != 0
    assert (tmp_path / "precious" / "thesis.tex").exists()


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_scenario_is_valid_and_has_a_summary(name: str) -> None:
    assert load_scenario(name).summary


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("epsilon = 1.0", "epsilon = -1"), "privacy.epsilon"),
        (("epsilon = 1.0", "epsilon = 1000"), "inf"),
        (('name = "dp-merf"', 'name = "dp-magic"'), "dp-merf"),
        (("features = 64", "features = 'many'"), "features"),
        (("steps = 5\nbatch = 20", "stepps = 5"), "stepps"),
        (("silos = 3", "silos = 0"), "data.silos"),
        (('dataset = "fashion-slice"', 'dataset = "fasion"'), "fashion-slice"),
    ],
)
def test_a_wrong_scenario_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], word: str
) -> None:
    path = scenario_file(tmp_path)
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--quiet"]) not in (0, 70)
    err = capsys.readouterr().err
    assert word in err and len(err.splitlines()) == 1


def test_an_unknown_scenario_names_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match="quickstart"):
        load_scenario("quickstrat")


def test_simulated_silos_are_ordinary_silos(tmp_path: Path) -> None:
    set_up(load_scenario(str(scenario_file(tmp_path))), tmp_path / "run", Console(quiet=True))
    assert Silo(tmp_path / "run" / "silos" / "north").settings.name == "north"


@pytest.mark.parametrize("mode", ["centralised", "decentralised"])
def test_sps_runs_on_the_shipped_backbone(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "small.toml"
    path.write_text(
        f"""
name = "small"
[data]
dataset = "fashion-slice"
silos = 2
records_per_silo = 800
[privacy]
epsilon = 8.0
[method]
name = "sps"
mode = "{mode}"
[method.settings]
global_dimensions = 8
class_dimensions = 8
features = 8
[synthesis]
images_per_class = 2
[synthesis.settings]
steps = 2
batch_per_class = 2
[evaluation]
runs = 0
"""
    )
    out = tmp_path / "run"
    assert main(["run", str(path), "--out", str(out), "--quiet"]) == 0
    assert server(["verify", str(out)]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert [row["epsilon"] for row in metrics["privacy"]] == [8.0, 8.0]
