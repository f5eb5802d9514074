"""A labelled set as an Arrow table, in the columns and with the metadata that Hugging Face's `datasets` understands.

Images are PNG files inside the table, so every pixel comes back as it was; labels are a `ClassLabel`, soft labels a
list of probabilities. Rows of a table are decoded: its own columns, the label among them, in their own types. Written
to Parquet it is what `load_dataset` reads; nothing here needs `datasets` itself.

>>> import numpy as np
>>> from dpdd.common.synthesis.labelled_set import LabelledSet
>>> pets = LabelledSet(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 0, 1, 1]), ("cat", "dog"))
>>> arrow_table(pets).column_names, picture(arrow_table(pets)["image"][3].as_py()["bytes"], (1, 8, 8)).shape
(['image', 'label'], (1, 8, 8))
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from dpdd.common.data.table.columns import Column, Date, Numeric
from dpdd.common.data.table.decoding import Decoded
from dpdd.common.data.table.encoding import bins_of
from dpdd.common.errors import DataError

if TYPE_CHECKING:
    from dpdd.common.synthesis.labelled_set import LabelledSet

PUBLIC_SEED = 0
"""Draws the numbers of a published table within their bins."""
DIGITS = 6
IMAGE, LABEL, SOFT_LABEL = "image", "label", "soft_label"
"""The names of columns."""
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's names for pixels of 8 bits in so many channels."""


def arrow_table(dataset: LabelledSet, seed: int = PUBLIC_SEED) -> pa.Table:
    """All records, in order; the numbers of a table lie in their bins by the public `seed`.

    DataError where a table's own column has the name of the soft labels.
    """
    arrays: dict[str, pa.Array] = {}
    if dataset.schema is not None:
        if dataset.soft is not None and SOFT_LABEL in dataset.schema.names:
            raise DataError(f"the table has a column {SOFT_LABEL!r}, which is the name of its soft labels: rename it")
        decoded = dataset.table(seed)
        arrays = {column.name: arrow_column(column, decoded[column.name]) for column in dataset.schema.columns}
    else:
        files = [{"bytes": png(image), "path": f"{number:06}.png"} for number, image in enumerate(dataset.images)]
        arrays[IMAGE] = pa.array(files, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        arrays[LABEL] = pa.array(dataset.labels, pa.int64())
    if dataset.soft is not None:
        arrays[SOFT_LABEL] = pa.array(list(dataset.soft), pa.list_(pa.float32()))
    about = {"info": {"features": _features(dataset)}}
    return pa.table(arrays).replace_schema_metadata({"huggingface": json.dumps(about)})


def arrow_type(column: Column) -> pa.DataType:
    """The type of a decoded column."""
    if isinstance(column, Date):
        return pa.date32()
    if isinstance(column, Numeric):
        return pa.int64() if column.integer else pa.float64()
    return pa.string()


def arrow_column(column: Column, decoded: Decoded) -> pa.Array:
    """A decoded column; null where a value is missing.

    Numbers have as many digits as are worth printing, the same on every machine, and stay in their bins.
    """
    values = np.ma.getdata(decoded)
    if isinstance(column, Numeric) and not column.integer:
        short = np.array([float(f"{value:.{DIGITS}g}") for value in values.tolist()], dtype=np.float64)
        values = np.where(bins_of(column, short) == bins_of(column, values), short, values)
    return pa.array(values, arrow_type(column), mask=np.ma.getmaskarray(decoded))


def _features(dataset: LabelledSet) -> dict[str, Any]:
    """The types of columns in the words of `datasets`; `Sequence` is what its older versions read, too."""
    features: dict[str, Any]
    if dataset.schema is not None:
        features = {each.name: {"dtype": hub_type(each), "_type": "Value"} for each in dataset.schema.columns}
    else:
        features = {IMAGE: {"_type": "Image"}, LABEL: {"names": list(dataset.classes), "_type": "ClassLabel"}}
    if dataset.soft is not None:
        features[SOFT_LABEL] = {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "Sequence"}
    return features


def hub_type(column: Column) -> str:
    """What Hugging Face calls the type of a decoded column."""
    return {"date32[day]": "date32", "double": "float64"}.get(str(arrow_type(column)), str(arrow_type(column)))


def png(image: NDArray[np.uint8]) -> bytes:
    """An image (C, H, W) as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)).save(file, "png")
    return file.getvalue()


def picture(file: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The inverse of `png`, for an image that must have this shape; anybody may have written the file."""
    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(file), formats=["PNG"]) as image:
            if image.size != (width, height) or image.mode != _MODES.get(channels):  # before anything is unpacked
                raise DataError(f"a picture of {image.width} x {image.height} pixels, {image.mode}, has another shape")
            return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"this is not a PNG file ({error})") from None
