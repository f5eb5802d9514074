"""`croissant.json`: the dataset in MLCommons' Croissant 1.0 format, a description that tools find and read data by.

It is JSON-LD in the vocabularies of schema.org, of Croissant (`cr`) and of its extension for responsible AI (`rai`),
which has a place for what the data card says of privacy. Specification: docs.mlcommons.org/croissant. Records are
those of the Parquet file in `huggingface/`; there is no date in it, so that equal runs give equal files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpdd.common.synthesis.arrow_table import IMAGE, LABEL, SOFT_LABEL, arrow_type
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product_files import file_sha256
from dpdd.server.publish.huggingface import FOLDER, PARQUET, keywords
from dpdd.server.publish.licences import spdx_url
from dpdd.server.report.card_text import about_text, privacy_text

CROISSANT = "croissant.json"
VERSION = "http://mlcommons.org/croissant/1.0"
RECORDS, CLASSES, FILE = "records", "classes", "parquet"
"""The names of the record sets, and of the file that records are in."""

_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}


def write_croissant(folder: Path, dataset: LabelledSet, card: Mapping[str, Any]) -> None:
    """Write it into `folder`, which has the Hugging Face folder and the dataset already."""
    parquet = f"{FOLDER}/{PARQUET}"
    files = [
        _file(FILE, parquet, "application/x-parquet", file_sha256(folder / parquet), folder),
        _file("safetensors", f"dataset/{card['file']}", "application/octet-stream", card["dataset_sha256"], folder),
    ]
    text = json.dumps(metadata(dataset, card, files), indent=2, ensure_ascii=False)
    (folder / CROISSANT).write_text(text + "\n")


def metadata(dataset: LabelledSet, card: Mapping[str, Any], files: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON-LD document."""
    licence = card.get("licence")
    stated = {} if licence is None else {"license": spdx_url(licence) or licence}
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": VERSION,
        "name": card["name"],
        "description": about_text(card),
        **stated,
        "keywords": keywords(card),
        "rai:dataCollection": "Synthesised from what silos released about their records, under the terms below.",
        "rai:personalSensitiveInformation": privacy_text(card),
        "distribution": files,
        "recordSet": [_class_records(dataset), _records(dataset)],
    }


def _file(name: str, path: str, kind: str, sha256: str, folder: Path) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": Path(path).name,
        "contentUrl": path,
        "contentSize": f"{(folder / path).stat().st_size} B",
        "encodingFormat": kind,
        "sha256": sha256,
    }


def _class_records(dataset: LabelledSet) -> dict[str, Any]:
    """The classes as an enumeration: what the numbers in the label column stand for."""
    fields = [
        {"@type": "cr:Field", "@id": f"{CLASSES}/label", "name": "label", "dataType": "sc:Integer"},
        {"@type": "cr:Field", "@id": f"{CLASSES}/name", "name": "name", "dataType": "sc:Text"},
    ]
    data = [{f"{CLASSES}/label": number, f"{CLASSES}/name": name} for number, name in enumerate(dataset.classes)]
    return {
        "@type": "cr:RecordSet",
        "@id": CLASSES,
        "name": CLASSES,
        "description": "The classes, by the number that stands for each in the labels.",
        "dataType": "sc:Enumeration",
        "key": {"@id": f"{CLASSES}/label"},
        "field": fields,
        "data": data,
    }


_TYPES = {"int64": "sc:Integer", "double": "sc:Float", "date32[day]": "sc:Date", "string": "sc:Text"}
"""Croissant's names for the types of a table's columns."""


def _records(dataset: LabelledSet) -> dict[str, Any]:
    if dataset.schema is not None:
        fields = [_field(column.name, _TYPES[str(arrow_type(column))]) for column in dataset.schema.columns]
    else:
        fields = [_field(IMAGE, "sc:ImageObject", transform={"jsonPath": "bytes"})]
        label = _field(LABEL, "sc:Integer", description=f"The class: a number that `{CLASSES}` explains.")
        fields.append(label | {"references": {"field": {"@id": f"{CLASSES}/label"}}})
    if dataset.soft is not None:
        soft = _field(SOFT_LABEL, "sc:Float", description="A probability for each class, in the order of the numbers.")
        fields.append(soft | {"repeated": True})
    return {"@type": "cr:RecordSet", "@id": RECORDS, "name": RECORDS, "field": fields}


def _field(column: str, kind: str, description: str = "", transform: dict[str, str] | None = None) -> dict[str, Any]:
    source: dict[str, Any] = {"fileObject": {"@id": FILE}, "extract": {"column": column}}
    return {
        "@type": "cr:Field",
        "@id": f"{RECORDS}/{column}",
        "name": column,
        **({"description": description} if description else {}),
        "dataType": kind,
        "source": source | ({"transform": transform} if transform else {}),
    }
