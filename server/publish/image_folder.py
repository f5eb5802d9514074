"""An image folder: one PNG file per image in a folder per class, as torchvision's and `datasets`' loaders read it.

Such loaders number classes in the order of folder names, so a folder's name begins with the class's number. Soft labels
have no place here.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dpdd.common.errors import DataError, IntegrityError
from dpdd.common.synthesis.arrow_table import picture, png
from dpdd.common.synthesis.labelled_set import LabelledSet

FOLDER = "imagefolder"
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


def write_image_folder(folder: Path, dataset: LabelledSet) -> None:
    """Write `train/<number>-<class>/<position>.png` into `folder`, also the folder of a class without images."""
    names = class_folders(dataset.classes)
    for name in names:
        (folder / "train" / name).mkdir(parents=True)
    for position, (image, label) in enumerate(zip(dataset.images, dataset.labels, strict=True)):
        (folder / "train" / names[label] / f"{position:06}.png").write_bytes(png(image))


def check_image_folder(folder: Path, dataset: LabelledSet) -> None:
    """IntegrityError unless the files in `folder` are exactly these images, each under its class."""
    names = class_folders(dataset.classes)
    expected = {
        folder / "train" / names[label] / f"{position:06}.png": image
        for position, (image, label) in enumerate(zip(dataset.images, dataset.labels, strict=True))
    }
    odd = {path for path in folder.rglob("*") if not path.is_dir()} ^ expected.keys()
    if odd:
        raise IntegrityError(f"{min(odd)}: the dataset in the card has no such image, or it is missing here")
    for path, image in expected.items():
        try:
            same = np.array_equal(picture(path.read_bytes(), image.shape), image)
        except DataError as error:
            raise IntegrityError(f"{path}: {error}") from None
        if not same:
            raise IntegrityError(f"{path}: this is another image than in the dataset in the card")


def class_folders(classes: tuple[str, ...]) -> list[str]:
    """A folder's name per class; sorted, they are in the order of the classes.

    >>> class_folders(("T-shirt/top", "Bag"))
    ['0-T-shirt_top', '1-Bag']
    """
    digits = len(str(len(classes) - 1))
    return [f"{number:0{digits}}-{_NOT_IN_NAMES.sub('_', name)[:60]}" for number, name in enumerate(classes)]
