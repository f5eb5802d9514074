"""SVHN and CIFAR-100 in the files that their authors publish, none of which runs code when it is read.

SVHN's cropped digits are MATLAB files, `train_32x32.mat` and `test_32x32.mat`: `X`, pixels (32, 32, 3, N), and `y`,
labels from 1 to 10, where 10 stands for the digit 0 (http://ufldl.stanford.edu/housenumbers). CIFAR-100 is taken in its
binary version: `train.bin` and `test.bin`, of records that are a coarse label, a fine label and 3 x 32 x 32 pixels, and
`fine_label_names.txt` (https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import check_growth, reading, require_file, shown

SVHN_CLASSES = tuple("0123456789")
SIDE = 32
CIFAR100_RECORD = 2 + 3 * SIDE**2
"""Bytes: two labels, then the pixels of each channel, row by row."""
_MAT = "a MATLAB file of SVHN's cropped digits"


def read_svhn(path: Path) -> LabelledImages:
    """The images of ``train_32x32.mat`` or ``test_32x32.mat``."""
    from scipy.io import loadmat, whosmat

    packed = require_file(path, _MAT)
    with reading(path, _MAT):
        shapes = {name: (shape, kind) for name, shape, kind in whosmat(str(path))}
        pixels, kind = shapes.get("X", ((), ""))
        if pixels[:3] != (SIDE, SIDE, 3) or len(pixels) != 4 or kind != "uint8":
            raise DataError(f"{shown(path)}: 'X' must be uint8 (32, 32, 3, N), not {kind or 'absent'} {pixels}")
        if shapes.get("y", ((), ""))[0] != (pixels[3], 1):
            raise DataError(f"{shown(path)}: 'y' must have a label for each of the {pixels[3]} images of 'X'")
        check_growth(path, packed, int(np.prod(pixels)))
        arrays = loadmat(str(path), variable_names=("X", "y"))
    labels = arrays["y"].ravel().astype(np.int64)
    odd = np.flatnonzero((labels < 1) | (labels > len(SVHN_CLASSES)))
    if len(odd):
        raise DataError(f"{shown(path)}: label {labels[odd[0]]} of image {odd[0] + 1} is not from 1 to 10")
    images = np.ascontiguousarray(arrays["X"].transpose(3, 2, 0, 1))
    return LabelledImages(images, labels % len(SVHN_CLASSES), SVHN_CLASSES)


def read_cifar100(path: Path, names: Path) -> LabelledImages:
    """The images of ``train.bin`` or ``test.bin`` with their fine labels, which `names` lists in order."""
    size = require_file(path, "the binary version of CIFAR-100")
    if not size or size % CIFAR100_RECORD:
        raise DataError(f"{shown(path)}: {size} bytes are not a whole number of records of {CIFAR100_RECORD}")
    require_file(names, "the names of CIFAR-100's fine labels")
    with reading(names, "the names of CIFAR-100's fine labels"):
        classes = tuple(names.read_text(encoding="ascii").split())
    with reading(path, "the binary version of CIFAR-100"):
        records = np.fromfile(path, np.uint8).reshape(-1, CIFAR100_RECORD)
    labels = records[:, 1].astype(np.int64)
    if labels.max() >= len(classes):
        raise DataError(f"{shown(path)} has a label {labels.max()}, and {shown(names)} has {len(classes)} names")
    images = np.ascontiguousarray(records[:, 2:]).reshape(-1, 3, SIDE, SIDE)
    return LabelledImages(images, labels, classes)
