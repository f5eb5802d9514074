"""A public pool in whole runs: labelled, selected from, distilled, learnt from, verified, and joined again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpdd.common.data import benchmarks
from dpdd.common.errors import ConfigError, DataError, IntegrityError
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.public_pool import PoolLabels, hashes_of
from dpdd.scenarios.cli import main
from dpdd.server.cli import main as server
from dpdd.server.report.verification import checked_run
from dpdd.server.run.checks import check_before_asking
from dpdd.server.run.scenario import load_scenario

SCENARIO = """
name = "pool"
[data]
dataset = "fashion-slice"
silos = 1
records_per_silo = 1000
[privacy]
epsilon = inf
[method]
name = "sps"
[method.settings]
features = 12
picture = 4
[synthesis]
images_per_class = 2
[synthesis.settings]
steps = 2
batch_per_class = 2
[synthesis.pool]
source = "photos.npz"
licence = "CC0-1.0"
{pool}
[synthesis.pool.distillation]
steps = 3
width = 4
networks = 1
training_steps = 2
batch = 8
[evaluation]
learners = ["convnet-dd", "convnet-pool"]
runs = {runs}
convnet_dd = {{ runs = 1, width = 4, steps = 2 }}
convnet_pool = {{ runs = 1, width = 4, steps = 2 }}
{more}
"""
ALSO = '[[synthesis.also]]\nname = "one"\nimages_per_class = 1\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Public images: test images of the slice, which no silo has."""
    folder = tmp_path_factory.mktemp("pool")
    images = benchmarks.load("fashion-slice", "test").images[:400]
    np.savez(folder / "photos.npz", images=images[:, 0])
    return folder


def scenario_file(folder: Path, pool: str, runs: int = 0, more: str = "") -> Path:
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(pool=pool, runs=runs, more=more))
    return path


def run(folder: Path, pool: str, runs: int = 0, more: str = "") -> Path:
    """Always the same run: only the first may ask the silo."""
    assert main(["run", str(scenario_file(folder, pool, runs, more)), "--out", str(folder / "run"), "--quiet"]) == 0
    return folder / "run"


def test_a_run_learns_from_its_pool_and_anybody_can_rebuild_it(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = run(folder, 'set = "selected"\nimages = 300', runs=1, more=ALSO)
    metrics = json.loads((done / "metrics.json").read_text())
    assert metrics["accuracy"]["convnet-pool"]["labels"] == "pool"
    assert "convnet-pool" not in metrics["also"][0]["accuracy"], "the pool is beside the first set alone"
    assert (metrics["pool"]["images"], metrics["pool"]["licence"]) == (300, "CC0-1.0")
    photos = np.load(folder / "photos.npz")["images"][:, None]
    chosen = LabelledSet.load(done / "dataset")
    public = {digest.tobytes() for digest in hashes_of(photos)}
    assert len(chosen) == 20 and {digest.tobytes() for digest in hashes_of(chosen.images)} <= public
    assert np.bincount(chosen.labels).tolist() == [2] * 10

    card = (done / "CARD.md").read_text()
    assert "300 public images of photos.npz" in card and "CC0-1.0" in card and "overlaps" in card
    assert server(["verify", str(done), "--pool", str(folder / "photos.npz")]) == 0
    assert "300 labels of the public pool are those of the dataset's teacher" in capsys.readouterr().out

    out, missing = tmp_path / "joined.npz", tmp_path / "missing.txt"
    np.savez(tmp_path / "some.npz", images=photos[::-1][:250])
    where = ["pool", str(done), str(tmp_path / "some.npz"), "--out", str(out), "--missing", str(missing)]
    assert server(where) == 0
    labels, joined = PoolLabels.load(done / "dataset"), np.load(out)
    lacking = missing.read_text().split()
    assert len(joined["images"]) + len(lacking) == 300 and lacking
    places = {digest.tobytes(): place for place, digest in enumerate(labels.hashes)}
    order = [places[digest.tobytes()] for digest in hashes_of(joined["images"])]
    assert np.array_equal(joined["soft"], labels.soft[order])
    assert server(where) != 0, "what is there is not written over"


def test_a_set_is_distilled_from_the_pool_without_asking_anybody_anew(folder: Path) -> None:
    before = sorted(path.name for path in run(folder, 'set = "selected"').glob("silos/*/state/outbox/*"))
    distilling = 'set = "distilled"\nparts = 2\nchoice = "surest"\nimages = 50\ncandidates = 1'
    done = run(folder, distilling)
    assert sorted(path.name for path in done.glob("silos/*/state/outbox/*")) == before
    distilled, labels = LabelledSet.load(done / "dataset"), PoolLabels.load(done / "dataset")
    assert len(distilled) == 80, "2 x 2 parts of two images in each of ten classes"
    assert len(labels) == 50
    assert distilled.teacher is not None and distilled.soft is not None
    again = LabelledSet.load(run(folder, distilling) / "dataset")
    assert np.array_equal(again.images, distilled.images)
    checked_run(done)


def test_without_the_section_no_public_image_is_read_or_named(folder: Path) -> None:
    done = run(folder, 'set = "method"')
    assert (done / "dataset" / "pool.safetensors").exists() and "pool" in checked_run(done).card
    text = (folder / "scenario.toml").read_text()
    start, stop = text.index("[synthesis.pool]"), text.index("[evaluation]")
    (folder / "without.toml").write_text(
        (text[:start] + text[stop:]).replace('"convnet-dd", "convnet-pool"', '"probe"')
    )
    assert main(["run", str(folder / "without.toml"), "--out", str(done), "--quiet"]) == 0
    assert not (done / "dataset" / "pool.safetensors").exists() and "pool" not in checked_run(done).card


@pytest.mark.parametrize("change", ["labels", "card", "file", "missing"])
def test_verify_refuses_a_pool_that_the_card_does_not_name(folder: Path, tmp_path: Path, change: str) -> None:
    done = tmp_path / "run"
    shutil.copytree(run(folder, 'set = "selected"\nimages = 60'), done)
    path, card = done / "dataset" / "pool.safetensors", json.loads((done / "card.json").read_text())
    if change == "labels":
        labels = PoolLabels.load(path.parent)
        steps = labels.steps.copy()
        steps[0] = steps[0][::-1]
        card["pool"]["sha256"] = PoolLabels(labels.hashes, steps, labels.facts).save(path.parent)
    elif change == "card":
        card["pool"]["licence"] = "public domain"
    elif change == "file":
        del card["pool"]
    else:
        path.unlink()
    (done / "card.json").write_text(json.dumps(card))
    if change == "labels":
        assert server(["verify", str(done)]) == 0, "who has no copy of the pool cannot tell"
        assert server(["verify", str(done), "--pool", str(folder / "photos.npz")]) == IntegrityError.exit_code
        return
    with pytest.raises(DataError if change == "missing" else IntegrityError):
        checked_run(done)


def _other(text: str, replacement: str) -> Callable[[str], str]:
    return lambda scenario: scenario.replace(text, replacement)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other('name = "sps"', 'name = "sps"\nmode = "decentralised"'), "one set of sums"),
        (_other('name = "sps"', 'name = "dp-merf"'), "contains no classifier that could label"),
        (_other('licence = "CC0-1.0"', ""), "licence"),
        (_other('source = "photos.npz"', 'source = "photos.npz"\ndataset = "mnist"'), "not both"),
        (_other('source = "photos.npz"', 'dataset = "photos"'), "there is no dataset 'photos'"),
        (_other('source = "photos.npz"', 'dataset = "fashion-mnist"'), "the run's private data"),
        (_other('source = "photos.npz"', 'source = "nowhere.npz"'), "there is no file or folder"),
        (lambda text: text[: text.index("[synthesis.pool]")] + text[text.index("[evaluation]") :], "declare one"),
    ],
)
def test_what_cannot_be_is_said_before_anybody_is_asked(folder: Path, change: Callable[[str], str], words: str) -> None:
    text = change(SCENARIO.format(pool="", runs=0, more=""))
    if "dp-merf" in text:
        text = text.replace("features = 12\npicture = 4", "")
        text = text.replace("[synthesis.settings]\nsteps = 2\nbatch_per_class = 2", "")
    path = folder / "wrong.toml"
    path.write_text(text)
    with pytest.raises((ConfigError, DataError), match=words):
        check_before_asking(load_scenario(str(path)))


def test_a_class_without_enough_images_is_named(folder: Path) -> None:
    text = (
        scenario_file(folder, 'set = "selected"').read_text().replace("images_per_class = 2", "images_per_class = 300")
    )
    (folder / "many.toml").write_text(text)
    assert main(["run", str(folder / "many.toml"), "--out", str(folder / "run"), "--quiet"]) == DataError.exit_code
