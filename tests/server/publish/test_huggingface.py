"""The Hugging Face folder, read back by `datasets` itself: every pixel, label and soft label as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml

from dpdd.common.synthesis.arrow_table import PUBLIC_SEED
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.publish.huggingface import PARQUET, front_matter, write_huggingface
from tests.server.finished_runs import CLASSES, finished_run, images, table


@pytest.fixture(autouse=True)
def quiet() -> Any:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def written(folder: Path, product: LabelledSet, **more: Any) -> Path:
    write_huggingface(folder / "hf", product, finished_run(folder / "run", product, **more))
    return folder / "hf"


def matter_of(readme: Path) -> dict[str, Any]:
    _, front, _ = readme.read_text().split("---\n", 2)
    matter: dict[str, Any] = yaml.safe_load(front)
    return matter


def loaded(folder: Path, cache: Path, by: str) -> Any:
    if by == "folder":
        return datasets.load_dataset(str(folder), split="train", cache_dir=str(cache))
    return datasets.load_dataset("parquet", data_files=str(folder / PARQUET), split="train", cache_dir=str(cache))


@pytest.mark.parametrize("by", ["folder", "parquet"])
@pytest.mark.parametrize(("channels", "soft"), [(1, True), (3, False), (4, True)])
def test_images_come_back_bit_by_bit(tmp_path: Path, channels: int, soft: bool, by: str) -> None:
    product = images(channels, soft=soft)
    train = loaded(written(tmp_path, product), tmp_path / "cache", by)
    pixels = np.stack([np.asarray(picture).reshape(28, 28, channels) for picture in train["image"]])
    np.testing.assert_array_equal(pixels.transpose(0, 3, 1, 2), product.images)
    assert list(train["label"]) == product.labels.tolist() and train.features["label"].names == list(CLASSES)
    assert ("soft_label" in train.column_names) is soft
    if product.soft is not None:
        np.testing.assert_array_equal(np.array(train["soft_label"], np.float32), product.soft)
    assert train.features == product.as_huggingface().features


@pytest.mark.parametrize("by", ["folder", "parquet"])
def test_tables_come_back_in_their_own_types(tmp_path: Path, by: str) -> None:
    product = table(soft=True)
    train = loaded(written(tmp_path, product), tmp_path / "cache", by)
    assert product.schema is not None
    assert train.column_names == [*product.schema.names, "soft_label"]
    for name, decoded in product.table(PUBLIC_SEED).items():
        assert list(train[name]) == (pytest.approx(decoded.tolist(), rel=1e-5) if name == "größe" else decoded.tolist())
    assert train.features == product.as_huggingface().features


def test_the_hub_understands_the_front_matter(tmp_path: Path) -> None:
    """`huggingface_hub` parses it, and `datasets` finds the columns of the file in it."""
    from huggingface_hub import DatasetCard

    folder = written(tmp_path, images(), licence="CC-BY-4.0")
    card = DatasetCard.load(folder / "README.md")
    assert card.data.license == "cc-by-4.0" and card.data.task_categories == ["image-classification"]
    assert card.data.size_categories == ["n<1K"] and "differential-privacy" in card.data.tags
    matter = matter_of(folder / "README.md")
    info = datasets.DatasetInfo.from_dict({})
    info = info._from_yaml_dict(matter["dataset_info"])
    assert info.features == datasets.load_dataset_builder(str(folder), cache_dir=str(tmp_path / "c")).info.features
    assert info.splits["train"].num_examples == 4
    assert info.download_size == (folder / PARQUET).stat().st_size


@pytest.mark.parametrize(
    ("licence", "word"), [(None, "unknown"), ("MIT", "mit"), ("cc-by-4.0", "cc-by-4.0"), ("Ask: the ministry", "other")]
)
def test_the_licence_in_the_hubs_words(tmp_path: Path, licence: str | None, word: str) -> None:
    folder = written(tmp_path, images(), **({} if licence is None else {"licence": licence}))
    matter = matter_of(folder / "README.md")
    assert matter["license"] == word
    assert (folder / "LICENSE").exists() is (word == "other")
    if word == "other":
        assert matter["license_link"] == "LICENSE" and (folder / "LICENSE").read_text() == "Ask: the ministry\n"


@pytest.mark.parametrize(("count", "category"), [(999, "n<1K"), (1000, "1K<n<10K"), (10_000, "10K<n<100K")])
def test_how_many_there_are_in_the_hubs_words(tmp_path: Path, count: int, category: str) -> None:
    card = finished_run(tmp_path, images())
    many = LabelledSet(np.zeros((count, 1, 2, 2), np.uint8), np.zeros(count, np.int64), CLASSES)
    assert front_matter(many, card, 1, 1)["size_categories"] == [category]


def test_people_read_what_is_promised_and_what_learners_reached(tmp_path: Path) -> None:
    text = (written(tmp_path, images()) / "README.md").read_text()
    for words in (
        "add or remove one labelled record",
        "north",
        "80.0 ± 1.0",
        "no part of the privacy claim",
        "2 of each",
    ):
        assert words in text
