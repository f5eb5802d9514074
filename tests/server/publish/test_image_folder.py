"""An image folder, read by the loaders that others use: classes keep their numbers."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest

from dpdd.common.data.lazy_torchvision import load_torchvision
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.publish.image_folder import check_image_folder, class_folders, write_image_folder


def many_classes() -> LabelledSet:
    """Twelve classes whose names sort otherwise than their numbers; the last has no image."""
    names = tuple(f"{letter}/ {letter}" for letter in "zyxwvutsrqpo")
    pixels = np.random.default_rng(0).integers(0, 256, (22, 3, 6, 5), dtype=np.uint8)
    return LabelledSet(pixels, np.arange(22) % 11, names)


@pytest.mark.parametrize("loader", ["torchvision", "datasets"])
def test_loaders_find_every_image_under_its_number(tmp_path: Path, loader: str) -> None:
    dataset = many_classes()
    write_image_folder(tmp_path / "images", dataset)
    if loader == "torchvision":
        load_torchvision()
        from torchvision.datasets import ImageFolder

        # a class without images has its folder, and with it its number
        found = ImageFolder(str(tmp_path / "images" / "train"), allow_empty=True)
        assert found.classes == class_folders(dataset.classes)
        pairs = [(Path(path).name, np.asarray(found.loader(path)), label) for path, label in found.samples]
    else:
        datasets.disable_progress_bars()
        train = datasets.load_dataset(
            "imagefolder", data_dir=str(tmp_path / "images"), split="train", cache_dir=str(tmp_path / "cache")
        )
        datasets.enable_progress_bars()
        pairs = [(Path(row["image"].filename).name, np.asarray(row["image"]), row["label"]) for row in train]
    assert len(pairs) == 22
    for name, pixels, label in pairs:
        position = int(name.removesuffix(".png"))
        np.testing.assert_array_equal(pixels.transpose(2, 0, 1), dataset.images[position])
        assert label == dataset.labels[position]
    check_image_folder(tmp_path / "images", dataset)


def test_names_of_folders_are_plain_and_distinct() -> None:
    names = class_folders(("../../etc", "a b", "a\tb", "", "x" * 500, "größe"))
    assert names == ["0-.._.._etc", "1-a_b", "2-a_b", "3-", "4-" + "x" * 60, "5-größe"]
    assert class_folders(tuple(map(str, range(11))))[9:] == ["09-9", "10-10"]
