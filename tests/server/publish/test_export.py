"""An export is whole or absent, says the same twice, passes `verify`, and fails it when a record in it was changed."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from dpdd.common.data import formats
from dpdd.common.data.formats import DataSpec
from dpdd.common.errors import ConfigError, DataError, IntegrityError
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.arrow_table import arrow_table
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product import ReleasedModel
from dpdd.server.cli import main as server
from dpdd.server.publish.huggingface import PARQUET
from dpdd.server.run.store import read_stored
from tests.server.finished_runs import CLASSES, finished_run, images, table

ALWAYS = {"CARD.md", "card.json", "dataset", "store", "requests"}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def exported(run: Path, out: Path, *options: str) -> Path:
    assert server(["export", str(run), "--out", str(out), *options]) == 0
    return out


def test_everything_is_there_and_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = finished_run(tmp_path / "run", images(teacher=True))
    out = exported(tmp_path / "run", tmp_path / "out", "--imagefolder")
    said = capsys.readouterr().out
    expected = {*ALWAYS, "huggingface", "croissant.json", "registry.yaml", "imagefolder"}
    assert {path.name for path in out.iterdir()} == expected
    for name in ("dataset.safetensors", "teacher.safetensors", "huggingface/", "croissant.json", "2 signed releases"):
        assert name in said
    for name in ("dataset/dataset.safetensors", "dataset/teacher.safetensors", "card.json", "CARD.md"):
        assert (out / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    for row in card["silos"]:
        for digest in row["release_sha256"]:
            assert read_stored(out / "store", digest)
    assert server(["verify", str(out)]) == 0
    said = capsys.readouterr().out
    assert "huggingface/ holds the same records" in said and "imagefolder/ holds the same records" in said


def test_others_may_read_what_a_private_run_publishes(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", images())
    for path in (tmp_path / "run").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    before = os.umask(0o022)
    try:
        out = exported(tmp_path / "run", tmp_path / "out", "--imagefolder")
    finally:
        os.umask(before)
    assert [path for path in out.rglob("*") if not path.stat().st_mode & 0o004] == []


def test_two_exports_have_the_same_bytes(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", images(3))
    one, two = (exported(tmp_path / "run", tmp_path / name, "--imagefolder") for name in ("one", "two"))
    assert files(one) == files(two)


@pytest.mark.parametrize("product", [table(), table(soft=True)], ids=["hard", "soft"])
def test_a_table_has_no_images(tmp_path: Path, product: LabelledSet) -> None:
    finished_run(tmp_path / "run", product)
    out = exported(tmp_path / "run", tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {*ALWAYS, "table", "huggingface", "croissant.json", "registry.yaml"}
    assert server(["verify", str(out)]) == 0


def test_a_table_is_published_with_its_original_columns(tmp_path: Path) -> None:
    product = table(soft=True)
    finished_run(tmp_path / "run", product)
    folder = exported(tmp_path / "run", tmp_path / "out") / "table"
    assert {path.name for path in folder.iterdir()} == {"table.parquet", "table.csv", "schema.toml", "DICTIONARY.md"}
    assert product.schema is not None
    read = pq.read_table(folder / "table.parquet")
    assert [str(kind) for kind in read.schema.types] == ["int64", "double", "string", "date32[day]", "string"]
    for path in (folder / "table.parquet", folder / "table.csv"):  # as a silo with this schema would read them
        declared = tomllib.loads((folder / "schema.toml").read_text())["data"]
        spec = DataSpec.model_validate({"format": path.suffix[1:], "path": path.name, **declared})
        assert spec.table == product.schema
        records = formats.load(spec, folder)
        np.testing.assert_array_equal(records.features[:], product.rows)
        np.testing.assert_array_equal(records.labels, product.labels)
    words = (folder / "DICTIONARY.md").read_text()
    assert "| `age` | whole number | 0 to 100, 10 linear bins | yes |" in words
    assert "| `kind` (label) | categorical | coat, shoe / boot | no |" in words


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_verify_compares_the_files_of_a_table_with_the_dataset(tmp_path: Path, name: str) -> None:
    finished_run(tmp_path / "run", table())
    out = exported(tmp_path / "run", tmp_path / "out")
    path = out / "table" / name
    if name == "table.csv":
        path.write_text(path.read_text().replace("some", "much", 1))
    else:
        pq.write_table(pq.read_table(path).slice(1), path)
    assert server(["verify", str(out)]) == IntegrityError.exit_code
    path.unlink()
    assert server(["verify", str(out)]) == IntegrityError.exit_code


def test_a_model_comes_without_the_formats_of_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ReleasedModel.of(EvaluationConvNet((1, 8, 8), 2, 4), CLASSES, (1, 8, 8), width=4)
    finished_run(tmp_path / "run", model)
    out = exported(tmp_path / "run", tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {*ALWAYS, "registry.yaml"}
    assert server(["verify", str(out)]) == 0
    picture = torch.zeros(1, 1, 8, 8)
    assert torch.equal(ReleasedModel.load(out / "dataset").logits(picture), model.logits(picture))
    refused = server(["export", str(tmp_path / "run"), "--out", str(tmp_path / "other"), "--imagefolder"])
    assert refused == ConfigError.exit_code and "this run made a model" in capsys.readouterr().err


def test_a_failed_export_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path / "run", table(soft=True, columns=("age", "soft_label")))
    before = {path.name for path in tmp_path.iterdir()}
    assert server(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == DataError.exit_code
    assert "a column 'soft_label', which is the name of its soft labels" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == before


def test_what_is_there_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path / "run", images())
    (tmp_path / "out").mkdir()
    assert server(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == ConfigError.exit_code
    assert "there is something of that name already" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_a_run_that_was_tampered_with_is_not_exported(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", images())
    images(soft=False).save(tmp_path / "run" / "dataset")
    assert server(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == IntegrityError.exit_code
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["pixel", "label", "soft label", "row fewer", "garbage", "larger pictures"])
def test_verify_compares_the_parquet_file_with_the_dataset(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Most people will read only that file."""
    finished_run(tmp_path / "run", images())
    path = exported(tmp_path / "run", tmp_path / "out") / "huggingface" / PARQUET
    other = images()
    assert other.soft is not None
    if what == "pixel":
        other.images[3, 0, 27, 27] ^= 1
    elif what == "label":
        other.labels[1] = 1
    elif what == "soft label":
        other.soft[2, 0] += 1e-3
    elif what == "row fewer":
        other = LabelledSet(other.images[:3], other.labels[:3], CLASSES, other.soft[:3])
    elif what == "larger pictures":
        other = images(side=29)
    pq.write_table(arrow_table(other), path)
    if what == "garbage":
        path.write_bytes(b"PAR1 and nothing else")
    assert server(["verify", str(tmp_path / "out")]) == IntegrityError.exit_code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_verify_compares_a_table_with_the_dataset(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", table())
    out = exported(tmp_path / "run", tmp_path / "out")
    other = table()
    other.rows[4, 1] += 1
    pq.write_table(arrow_table(other), out / "huggingface" / PARQUET)
    assert server(["verify", str(out)]) == IntegrityError.exit_code


def test_verify_compares_the_image_folder_with_the_dataset(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", images())
    out = exported(tmp_path / "run", tmp_path / "out", "--imagefolder")
    kept = sorted((out / "imagefolder").rglob("*.png"))
    content = kept[0].read_bytes()
    for damage in (kept[1].read_bytes(), b"no picture", None):
        kept[0].unlink() if damage is None else kept[0].write_bytes(damage)
        assert server(["verify", str(out)]) == IntegrityError.exit_code
    kept[0].write_bytes(content)
    assert server(["verify", str(out)]) == 0
    kept[0].with_name("more.png").write_bytes(content)
    assert server(["verify", str(out)]) == IntegrityError.exit_code


def test_cards_of_earlier_versions_verify_and_can_be_exported(tmp_path: Path) -> None:
    card = finished_run(tmp_path / "run", images(teacher=True))
    for key in ("licence", "evaluation", "records_per_class", "teacher_backbone"):
        del card[key]
    (tmp_path / "run" / "card.json").write_text(json.dumps(card))
    assert server(["verify", str(tmp_path / "run")]) == 0
    assert server(["verify", str(exported(tmp_path / "run", tmp_path / "out"))]) == 0


def test_a_run_that_protects_nobody_is_no_deployment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = finished_run(tmp_path / "run", images())
    (tmp_path / "run" / "card.json").write_text(json.dumps(card | {"protects_people": False}))
    out = exported(tmp_path / "run", tmp_path / "out")
    assert not (out / "registry.yaml").exists() and "it protects nobody" in capsys.readouterr().out
    assert "differential-privacy" not in (out / "croissant.json").read_text()
    assert "it protects nobody" in (out / "huggingface" / "README.md").read_text()
