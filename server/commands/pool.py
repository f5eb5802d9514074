"""`pool`: the public images that a dataset names, put together again with the soft labels that it has for them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dpdd.common.synthesis.public_pool import PoolFacts


def pool(options: argparse.Namespace) -> None:
    """Join hashes with images, and say which are missing."""
    from dpdd.common.cli import facts
    from dpdd.common.errors import ConfigError
    from dpdd.common.synthesis.public_pool import PoolLabels

    for path in (options.out, options.missing):
        if path is not None and path.exists():
            raise ConfigError(f"{path}: there is something of that name already")
    labels = PoolLabels.load(dataset_folder(options.folder))
    about = labels.facts
    joined = labels.join(images_of(options.images, about, options.images_key))
    shown = {
        "public pool": about.name,
        "licence": about.licence,
        "named": str(len(labels)),
        "found": f"{len(joined.pool)}",
    }
    print(facts({**shown, "missing": str(joined.missing)}))
    if options.out is not None:
        write_npz(options.out, joined.pool.images, joined.pool.soft)
        print(f"wrote {options.out}: images (uint8) and soft (probabilities of {', '.join(about.classes)})")
    if options.missing is not None:
        options.missing.write_text("".join(f"{digest.tobytes().hex()}\n" for digest in joined.missing_hashes))
        print(f"wrote {options.missing}: the SHA-256 of every image that is missing")


def dataset_folder(folder: Path) -> Path:
    """The dataset's own folder, of a run or an export."""
    inside = folder / "dataset"
    return inside if inside.is_dir() else folder


def images_of(source: str, about: PoolFacts, images_key: str) -> NDArray[np.uint8]:
    """The images of a benchmark, an .npz archive or a folder, in the pool's shape."""
    from typing import cast

    from dpdd.common.data import benchmarks
    from dpdd.common.data.public_images import read_dataset, read_source
    from dpdd.common.data.schema import Fit

    fit = cast("Fit", about.fit)
    if source in benchmarks.names():
        return read_dataset(source, about.shape, fit)
    return read_source(Path(source), about.shape, fit, images_key)


def write_npz(path: Path, images: NDArray[np.uint8], soft: NDArray[np.float32]) -> None:
    """Both arrays, in the same order."""
    import numpy as np

    with path.open("wb") as file:
        np.savez(file, images=images, soft=soft)
