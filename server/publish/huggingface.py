"""A Hugging Face folder: the records as Parquet, and a `README.md` whose front matter the hub understands.

`datasets.load_dataset(folder, split="train")` reads it without a network, and a folder with these two files is a
dataset repository on the hub. The columns are those of `dpdd.common.synthesis.arrow_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdd.common.errors import DataError, IntegrityError
from dpdd.common.synthesis.arrow_table import IMAGE, LABEL, SOFT_LABEL, arrow_table, hub_type, picture
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.publish.licences import hub_licence
from dpdd.server.report.card_text import about_text, evaluation_text, licence_text, privacy_text

FOLDER = "huggingface"
PARQUET = "data/train-00000-of-00001.parquet"
_LARGEST_OF_CATEGORY = {"n<1K": 10**3, "1K<n<10K": 10**4, "10K<n<100K": 10**5, "100K<n<1M": 10**6}


def write_huggingface(folder: Path, dataset: LabelledSet, card: Mapping[str, Any]) -> None:
    """Write Parquet and README into `folder`."""
    table = arrow_table(dataset)
    path = folder / PARQUET
    path.parent.mkdir(parents=True)
    pq.write_table(table, path)
    (folder / "README.md").write_text(readme(dataset, card, table.nbytes, path.stat().st_size))
    if hub_licence(card.get("licence")) == "other":  # words of the coordinator's own, to which the front matter points
        (folder / "LICENSE").write_text(f"{card['licence']}\n")


def readme(dataset: LabelledSet, card: Mapping[str, Any], arrow_bytes: int, parquet_bytes: int) -> str:
    """The dataset card: front matter for the hub, then the data card for people."""
    import yaml

    matter = yaml.safe_dump(
        front_matter(dataset, card, arrow_bytes, parquet_bytes), sort_keys=False, allow_unicode=True, width=110
    )
    columns = f"`{IMAGE}` (PNG, every pixel as it was made), `{LABEL}` (the class)"
    if dataset.schema is not None:
        columns = (
            f"those of the table, of which `{dataset.schema.label}` is the label; a number is drawn within its bin"
        )
    soft = f", `{SOFT_LABEL}` (a probability for each class)" if dataset.soft is not None else ""
    sections = [
        f"# {card['name']}",
        about_text(card),
        f"Columns: {columns}{soft}.",
        "## Use\n\n```python\nfrom datasets import load_dataset\n\n"
        'dataset = load_dataset("this folder, or its name on the hub", split="train")\n```',
        f"## Privacy\n\n{privacy_text(card)}",
        *([f"## What learners reached\n\n{text}"] if (text := evaluation_text(card)) else []),
        f"## Licence\n\n{licence_text(card)}",
        "## Verifying\n\nThe releases named above are signed by the silos. They are published with the whole\n"
        "export, in which `dpdd-server verify` checks them, and that these records are those of the data card.",
    ]
    return f"---\n{matter}---\n\n" + "\n\n".join(sections) + "\n"


def front_matter(dataset: LabelledSet, card: Mapping[str, Any], arrow_bytes: int, parquet_bytes: int) -> dict[str, Any]:
    """The YAML of a dataset repository, in the fields that the hub and `datasets` read."""
    licence, count = card.get("licence"), len(dataset)
    category = next((name for name, limit in _LARGEST_OF_CATEGORY.items() if count < limit), "n>1M")
    matter: dict[str, Any] = {"license": hub_licence(licence)}
    if matter["license"] == "other":
        matter |= {"license_name": "as-stated", "license_link": "LICENSE"}
    train = {"name": "train", "num_bytes": arrow_bytes, "num_examples": count}
    return matter | {
        "pretty_name": card["name"],
        "task_categories": ["tabular-classification" if dataset.is_table else "image-classification"],
        "size_categories": [category],
        "tags": keywords(card),
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}],
        "dataset_info": {
            "features": _features(dataset),
            "splits": [train],
            "download_size": parquet_bytes,
            "dataset_size": arrow_bytes,
        },
    }


def keywords(card: Mapping[str, Any]) -> list[str]:
    """What people may look for."""
    private = ["differential-privacy"] if card["protects_people"] else []
    return ["synthetic", "dataset-distillation", "federated-learning", *private]


def _features(dataset: LabelledSet) -> list[dict[str, Any]]:
    soft = [{"name": SOFT_LABEL, "sequence": "float32"}] if dataset.soft is not None else []
    if dataset.schema is not None:
        return [*({"name": column.name, "dtype": hub_type(column)} for column in dataset.schema.columns), *soft]
    names = {str(number): name for number, name in enumerate(dataset.classes)}
    return [{"name": IMAGE, "dtype": "image"}, {"name": LABEL, "dtype": {"class_label": {"names": names}}}, *soft]


def check_huggingface(folder: Path, dataset: LabelledSet) -> None:
    """IntegrityError unless the Parquet file in `folder` holds exactly these records and labels."""
    path = folder / PARQUET
    try:
        with pq.ParquetFile(path) as file:
            same = file.metadata.num_rows == len(dataset) and _same(file.read(), dataset)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, DataError) as error:
        raise IntegrityError(f"{path}: this is not the dataset in the card ({error})") from None
    if not same:
        raise IntegrityError(f"{path}: the records or labels are not the ones of the dataset in the card")


def _same(table: pa.Table, dataset: LabelledSet) -> bool:
    own = (IMAGE, LABEL) if dataset.schema is None else dataset.schema.names
    if table.column_names != [*own, *([SOFT_LABEL] if dataset.soft is not None else [])]:
        return False
    if dataset.soft is not None:
        soft = np.array(table[SOFT_LABEL].to_pylist(), np.float32)
        if not np.array_equal(soft, dataset.soft):
            return False
    if dataset.schema is not None:
        expected = arrow_table(dataset)
        return all(table[name].combine_chunks().equals(expected[name].combine_chunks()) for name in own)
    if not np.array_equal(table[LABEL].to_numpy(), dataset.labels):
        return False
    shape = dataset.images.shape[1:]
    return all(
        np.array_equal(picture(file.as_py()["bytes"], shape), image)
        for file, image in zip(table[IMAGE], dataset.images, strict=True)
    )
