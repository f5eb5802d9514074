"""Reading what a scenario's `[data]` names: public test data, and the source of a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data import benchmarks, formats, table_benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.data.labelled_records import LabelledRecords, as_pixels
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.files.untrusted import shown
from dpdd.common.randomness import uniforms
from dpdd.server.run.data_section import DataSection


def public_test_images(data: DataSection, seed: int) -> LabelledImages | None:
    """The public test data as images of 8 bits; None where there is none. DataError names the key."""
    if data.is_table:
        return None
    if data.dataset is not None:
        if data.dataset not in benchmarks.names():
            known = ", ".join((*benchmarks.names(), *table_benchmarks.names()))
            raise DataError(f"there is no dataset {shown(data.dataset, 60)!r}; the datasets are: {known}")
        return benchmarks.load(data.dataset, "test")
    schema = data.declared
    assert schema is not None
    records = _public_test(data, seed)
    if records is None:
        return None
    key = "source" if data.test is None else "test"
    with _naming(key):
        return LabelledImages(as_pixels(records.features[:]), records.labels, schema.classes)


def public_test_rows(data: DataSection, seed: int) -> LabelledRows | None:
    """The public test data of a table as codes; None where there is none, and for images. DataError names the key."""
    if not data.is_table:
        return None
    if data.dataset is not None:
        return table_benchmarks.load(data.dataset, "test")
    schema, records = data.declared, _public_test(data, seed)
    assert schema is not None and schema.table is not None
    return None if records is None else LabelledRows(records.features[:], records.labels, schema.table)


def _public_test(data: DataSection, seed: int) -> LabelledRecords | None:
    """What `test` names, or the share of the source that is set aside for tests."""
    if data.test is not None:
        records = _read(data, "test")
    elif data.source is not None and data.test_share is not None:
        whole = _read(data, "source")
        records = whole.subset(np.flatnonzero(set_aside(whole, data.test_share, seed)))
    else:
        return None
    if len(records) == 0:
        raise DataError("data.test: there are no test records; at least one is needed")
    return records


def silo_records(data: DataSection, seed: int) -> tuple[LabelledRecords, NDArray[np.int64]]:
    """A benchmark's training data, or the source; and the positions of what simulated silos hold: no test share."""
    if data.dataset is not None and data.is_table:
        rows = table_benchmarks.load(data.dataset, "train")
        return LabelledRecords(rows.rows, rows.labels), np.arange(len(rows))
    if data.dataset is not None:
        train = benchmarks.load(data.dataset, "train")
        return LabelledRecords(train.images, train.labels), np.arange(len(train))
    if data.source is None:
        raise ConfigError(
            "there is no data for simulated silos: name one dataset as data.source in the scenario, or as --source"
        )
    whole = _read(data, "source")
    if data.test_share is None:
        return whole, np.arange(len(whole))
    return whole, np.flatnonzero(~set_aside(whole, data.test_share, seed))


def set_aside(records: LabelledRecords, share: float, seed: int) -> NDArray[np.bool_]:
    """Which records are the test share: whole groups, in an order by the seed, until they are nearest to the share."""
    each = np.arange(len(records)) if records.groups is None else records.groups
    names, group, sizes = np.unique(each, return_inverse=True, return_counts=True)
    if len(names) < 2:
        what = "record" if records.groups is None else "group"
        raise ConfigError(
            f"data.test_share: a source of {len(names)} {what}(s) cannot be split into test data and silos"
        )
    order = np.argsort(uniforms(seed, "test share", len(names)), kind="stable")
    missed = np.abs(np.cumsum(sizes[order])[:-1] - share * len(records))
    chosen = np.zeros(len(names), dtype=np.bool_)
    chosen[order[: 1 + int(missed.argmin())]] = True
    return chosen[group]


def _read(data: DataSection, key: str) -> LabelledRecords:
    source, schema = getattr(data, key), data.declared
    assert source is not None and schema is not None
    with _naming(key):
        return formats.load(source.read_by(schema), Path())


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """A DataError in here names the key whose data it is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"data.{key}: {error}") from None
