"""Build `data/fashion-slice.npz`, the part of Fashion-MNIST that is shipped, from the full dataset.

``python -m dpdd.scenarios.data.make_fashion_slice`` writes it; with ``--check`` it only compares. The slice is the
first 2,400 training and the first 400 test images of every class, in the dataset's own order: no random
numbers, so anyone gets the same images. The file's bytes are the same too wherever liblzma is (its encoder
has been stable for years); a rebuild that differs only in packing still passes ``--check``, which compares
the arrays.

Fashion-MNIST is under the MIT licence, see `data/FASHION-MNIST-LICENSE.txt`.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpdd.common.data import benchmarks
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown
from dpdd.scenarios import rebuild

PER_CLASS: dict[benchmarks.Split, int] = {"train": 2400, "test": 400}
SLICE = Path(benchmarks.__file__).parent / "fashion-slice.npz"

_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip can hold; the clock must not reach the file


def first_of_each_class(labels: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.intp]:
    """Return the positions of the first `count` records of every class, in the order of the dataset.

    >>> first_of_each_class(np.array([1, 0, 1, 1, 0, 0]), 2).tolist()
    [0, 1, 2, 4]
    """
    classes = np.unique(labels)
    positions = [np.flatnonzero(labels == label)[:count] for label in classes]
    too_small = [int(label) for label, own in zip(classes, positions, strict=True) if len(own) < count]
    if too_small:
        raise DataError(f"class {too_small[0]} of fashion-mnist has fewer than {count} images; use the full dataset")
    return np.sort(np.concatenate(positions))


def arrays() -> dict[str, npt.NDArray[np.uint8]]:
    """Return the arrays of the slice, cut from the full dataset."""
    cut: dict[str, npt.NDArray[np.uint8]] = {}
    for split, count in PER_CLASS.items():
        full = benchmarks.load("fashion-mnist", split)
        part = full.subset(first_of_each_class(full.labels, count))
        cut[f"{split}_images"] = part.images[:, 0]
        cut[f"{split}_labels"] = part.labels.astype(np.uint8)
    return cut


def pack(content: dict[str, npt.NDArray[np.uint8]]) -> bytes:
    """Return an .npz archive of `content`, without dates, packed with LZMA (a seventh below deflate)."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in content.items():
            member = zipfile.ZipInfo(f"{name}.npy", _LONG_AGO)
            member.compress_type = zipfile.ZIP_LZMA
            member.create_system = 3
            member.external_attr = 0o644 << 16
            data = io.BytesIO()
            np.lib.format.write_array(data, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
            archive.writestr(member, data.getvalue())
    return packed.getvalue()


def check(path: Path) -> None:
    """Raise `DataError` unless `path` holds exactly the arrays a rebuild would hold."""
    fresh = arrays()
    for split in PER_CLASS:
        held = benchmarks.read_slice(path, split)
        same_images = np.array_equal(held.images[:, 0], fresh[f"{split}_images"])
        if not (same_images and np.array_equal(held.labels, fresh[f"{split}_labels"])):
            raise DataError(f"{shown(path)}: its {split} split is not what fashion-mnist gives; build it again")


def write(path: Path) -> None:
    """Cut the slice and save it."""
    path.write_bytes(pack(arrays()))


def main(arguments: list[str] | None = None) -> int:
    """Write or check the slice; the return value is the process's exit code."""
    return rebuild.main(
        arguments, program="make_fashion_slice", description=__doc__, output=SLICE, write=write, check=check
    )


if __name__ == "__main__":
    sys.exit(main())
