"""The teacher of a table: logistic regression over the one-hot cells of its columns.

The releases already contain it, so it costs no further privacy (`dpdd.common.methods.sps_table.classifier` fits it).
It labels the rows of the synthetic table, and any others: codes, or columns as a file has them.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> schema = TableSchema(label="sick", columns=(
...     Numeric(name="age", low=0, high=100, bins=2), Categorical(name="sick", categories=("no", "yes"))))
>>> teacher = TableTeacher(np.array([[1, 0, 0], [0, 1, 0]], np.float32), schema)
>>> teacher.probabilities({"age": [20, "80", 1e9]}).argmax(1).tolist()
[0, 1, 1]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

from dpdd.common.data.table import cells
from dpdd.common.data.table.encoding import encode_column
from dpdd.common.data.table.rows import odd_rows
from dpdd.common.data.table.schema import TableSchema, table_schema
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.files.untrusted import shown
from dpdd.common.models import table_logistic
from dpdd.common.synthesis.linear_teacher import LinearTeacher
from dpdd.common.synthesis.product_files import TEACHER, UNREADABLE

_BATCH = 10_000


@dataclass(frozen=True, eq=False)
class TableTeacher(LinearTeacher):
    """Weights (classes, cells + 1) as `table_logistic` has them, and the schema of the table that they are for."""

    schema: TableSchema

    def __post_init__(self) -> None:
        wanted = table_logistic.weights_shape(self.schema)
        if self.weights.dtype != np.float32 or self.weights.shape != wanted:
            raise ValueError(
                f"weights are {self.weights.dtype} of shape {self.weights.shape}, not float32 of shape {wanted}"
            )

    @cached_property
    def _scorer(self) -> Callable[[Tensor], Tensor]:
        return table_logistic.scorer(self.weights, self.schema)

    @property
    def constant(self) -> float:
        """Every row has a 1 beside its cells."""
        return 1.0

    @property
    def facts(self) -> Mapping[str, Any]:
        """Nothing: it stands on the schema alone, which the dataset has."""
        return {}

    def logits(self, rows: Tensor, /) -> Tensor:
        """Unnormalised log probabilities for rows of codes."""
        return self._scorer(rows).float()

    def probabilities(self, rows: Tensor | NDArray[Any] | Mapping[str, Sequence[Any] | NDArray[Any]], /) -> Tensor:
        """Labels for many rows: codes (N, columns without the label), of torch or NumPy; or columns by their names.

        Cells of columns are read as a silo reads them (docs/tables.md); the label's, and others that the schema does
        not have, are not looked at. DataError for codes that are none, and for a value that may not be missing.
        """
        codes = self._encoded(rows) if isinstance(rows, Mapping) else self._checked(rows)
        with torch.inference_mode():
            parts = [torch.softmax(self.logits(part), 1) for part in codes.split(_BATCH)]
            return torch.cat(parts) if parts else torch.zeros(0, self.classes)

    def _checked(self, rows: Tensor | NDArray[Any]) -> Tensor:
        codes = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        if codes.ndim != 2 or codes.shape[1:] != self.schema.shape or codes.dtype.kind not in "iuf":
            raise DataError(
                f"the teacher labels rows of {self.schema.shape[0]} codes each, or columns by name, not {codes.dtype} "
                f"of shape {codes.shape}"
            )
        odd = np.flatnonzero(odd_rows(self.schema, codes))
        if len(odd):
            raise DataError(f"row {odd[0] + 1} holds a number that is no code of its column")
        return torch.from_numpy(codes.astype(np.int64))

    def _encoded(self, table: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Tensor:
        features = self.schema.features
        missing = [column.name for column in features if column.name not in table]
        if missing:
            raise DataError(f"the teacher needs the column {missing[0]!r}, which is not there")
        lengths = {len(table[column.name]) for column in features}
        if len(lengths) > 1:
            raise DataError("the columns have different numbers of rows")
        encoded = []
        for column in features:
            raw = table[column.name]
            codes = encode_column(column, raw if isinstance(raw, np.ndarray) else list(raw))
            absent = np.flatnonzero(codes == cells.DROPPED)
            if len(absent):
                raise DataError(f"row {absent[0] + 1} has no value in {column.name!r}, where none may be missing")
            encoded.append(codes)
        return torch.from_numpy(np.stack(encoded, axis=1).astype(np.int64))

    def save(self, folder: Path) -> None:
        """Write ``teacher.safetensors`` into `folder`."""
        about = {"format": "dpdd table teacher v1", "schema": self.schema.model_dump(mode="json")}
        header = {"dpdd": json.dumps(about, ensure_ascii=True, sort_keys=True)}
        save_file({"weights": np.ascontiguousarray(self.weights)}, folder / TEACHER, metadata=header)

    @classmethod
    def load(cls, folder: Path) -> TableTeacher | None:
        """The teacher in `folder`, if there is one."""
        path = folder / TEACHER
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                about = json.loads(file.metadata()["dpdd"])
                teacher = cls(file.get_tensor("weights"), table_schema(about["schema"], "its header"))
            if not np.isfinite(teacher.weights).all():
                raise ValueError("its weights are not finite")
            return teacher
        except (*UNREADABLE, ConfigError) as error:
            raise DataError(f"{path}: this is not a teacher of a dpdd table ({shown(error, 200)})") from None
