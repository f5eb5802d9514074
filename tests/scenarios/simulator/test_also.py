"""Several datasets from one set of releases: a finished run gives another method's set without asking anybody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.simulator.simulate import run
from dpdd.server.cli import main as server
from dpdd.server.report.also import also_lines
from dpdd.server.run.scenario import load_scenario

ALSO = """
[[synthesis.also]]
name = "kip"
method = "kip-moments"
images_per_class = 1
settings = { steps = 3 }
[[synthesis.also]]
name = "more"
images_per_class = 3
settings = { steps = 2 }
"""


def releases(folder: Path) -> dict[str, bytes]:
    """All that silos sent, by file."""
    return {str(path): path.read_bytes() for path in folder.glob("silos/*/state/outbox/*.release")}


def made(folder: Path, also: str) -> dict[str, Any]:
    path = folder / "study.toml"
    path.write_text(f"""
name = "study"
[data]
dataset = "fashion-slice"
silos = 2
records_per_silo = 300
[privacy]
epsilon = 8.0
[method]
name = "sps"
[method.settings]
features = 16
picture = 4
stages = 2
[synthesis]
images_per_class = 2
[synthesis.settings]
steps = 2
{also}
[evaluation]
learners = ["krr", "krr-ntk"]
labels = "hard"
metrics = []
""")
    return run(str(path), load_scenario(str(path)), folder / "run", Console(quiet=True))


@pytest.mark.usefixtures("few_test_records")
def test_a_finished_run_gives_further_datasets_without_asking_anybody(tmp_path: Path) -> None:
    before = made(tmp_path, "")
    asked = releases(tmp_path / "run")
    assert "also" not in before and len(asked) == 4  # two silos, two stages
    after = made(tmp_path, ALSO)
    assert releases(tmp_path / "run") == asked
    assert after["privacy"] == before["privacy"]
    assert after["dataset"]["sha256"] == before["dataset"]["sha256"]
    kip, more = after["also"]
    assert (kip["name"], kip["method"], kip["images"]) == ("kip", "kip-moments", 10)
    assert (more["name"], more["method"], more["images"]) == ("more", "sps", 30)
    assert set(kip["accuracy"]) == {"krr", "krr-ntk", "teacher"}
    folder = tmp_path / "run" / "dataset" / "also"
    assert LabelledSet.load(folder / "kip").images.shape == (10, 1, 28, 28)
    assert LabelledSet.load(folder / "kip").teacher is not None
    text = (tmp_path / "run" / "CARD.md").read_text()
    assert "10 synthetic images by kip-moments" in text and kip["sha256"] in text
    assert any("also kip, 10 synthetic images by kip-moments" in line for line in also_lines(after, tmp_path / "run"))
    assert server(["verify", str(tmp_path / "run")]) == 0
    assert server(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert server(["verify", str(tmp_path / "out")]) == 0
    once_more = made(tmp_path, "")
    assert "also" not in once_more and not folder.exists()
    assert server(["verify", str(tmp_path / "run")]) == 0


@pytest.mark.usefixtures("few_test_records")
def test_verify_finds_another_further_dataset_than_the_card_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, ALSO)
    folder = tmp_path / "run" / "dataset" / "also"
    card = json.loads((tmp_path / "run" / "card.json").read_text())

    def refused(words: str) -> None:
        assert server(["verify", str(tmp_path / "run")]) != 0
        assert words in capsys.readouterr().err

    shutil.move(folder / "more", tmp_path / "aside")
    refused("'more' is in the card or in this folder, and not in both")
    shutil.copytree(folder / "kip", folder / "more")
    refused("more/dataset.safetensors: this is not what the card says")
    shutil.rmtree(folder / "more")
    shutil.move(tmp_path / "aside", folder / "more")
    assert server(["verify", str(tmp_path / "run")]) == 0
    shutil.copytree(folder / "kip", folder / "stranger")
    refused("'stranger' is in the card or in this folder, and not in both")
    shutil.rmtree(folder / "stranger")
    (folder / "more" / "teacher.safetensors").write_bytes(b"another")
    refused("more/teacher.safetensors: this is not what the card says")
    for bad in ("kip", {"name": "kip"}, {**card["also"][0], "file": "../../card.json"}):
        (tmp_path / "run" / "card.json").write_text(json.dumps({**card, "also": [bad]}))
        refused("it names further datasets without saying which")


@pytest.mark.parametrize(
    ("also", "complaint"),
    [
        (
            '[[synthesis.also]]\nname = "x"\nmethod = "dosser"',
            "makes nothing of what sps releases.*sps, sps-published, kip-moments",
        ),
        ('[[synthesis.also]]\nname = "x"\nmethod = "magic"', "'magic' makes nothing of what sps releases"),
        ('[[synthesis.also]]\nname = "../x"', "no name of a folder"),
        ('[[synthesis.also]]\nname = "x"\n[[synthesis.also]]\nname = "x"', "two further datasets have one name"),
        ('[[synthesis.also]]\nname = "x"\nsettings = { stepps = 3 }', "also, x: .*stepps"),
        ('[[synthesis.also]]\nname = "x"\n[continual]\ntasks = 2', "synthesis.also is for one set of sums"),
    ],
)
def test_what_cannot_be_made_is_refused_as_it_is_read(tmp_path: Path, also: str, complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):
        made(tmp_path, also)
    assert not (tmp_path / "run").exists()
