"""`describe`: a table's schema, proposed as TOML to paste into `silo.toml` and to agree on with others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from dpdd.common.data.formats.spec import SourceSpec
    from dpdd.common.data.formats.tables.block import Block


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the sub-command."""
    parser.add_argument("file", type=Path, nargs="?", help="a CSV (also gzipped) or Parquet file")
    parser.add_argument("--url", help="a database instead, as an SQLAlchemy URL without a password")
    parser.add_argument("--query", help="with --url: the SELECT whose result is the table")
    parser.add_argument("--password-env", metavar="NAME", help="with --url: the variable with the password")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="with --url: the file with the password")
    parser.add_argument("--separator", help="csv: what stands between cells (default: what the header seems to have)")
    parser.add_argument("--encoding", help="csv: the encoding of the text (default: utf-8)")
    parser.add_argument("--label", help="the column that the others are to predict")
    parser.add_argument(
        "--wide",
        action="store_true",
        help="generous public bounds instead of question marks: a draft for column histograms, which find better ones "
        "at a price (docs/tables.md)",
    )
    parser.add_argument(
        "--look",
        action="store_true",
        help="read the values too: what you then paste into silo.toml BECOMES PUBLIC, without any noise",
    )


def describe(options: argparse.Namespace) -> None:
    """Print what names and types say; with `--look`, what the values say."""
    from dpdd.client.records.proposal import from_types, from_values, look

    if options.wide and options.look:
        raise ConfigError("--wide is for what is not public, and --look makes it public: choose one of them")
    given, source, types = _source(options)
    if options.label is not None and options.label not in types:
        raise ConfigError(f"--label: there is no column {options.label!r}; the columns are {', '.join(types)}")
    names = list(types)
    if options.look:
        print(
            "dpdd-client: --look reads your records. What is printed is as private as they are, and whatever of it you "
            "paste into silo.toml becomes public",
            file=sys.stderr,
        )
        body = from_values(look(names, _blocks(source, names)), options.label)
    else:
        body = from_types(types, options.label, wide=options.wide)
    print("[data]")
    for key, value in given.items():
        print(f"{key} = {_quoted(value)}")
    print(body)


def _source(options: argparse.Namespace) -> tuple[dict[str, str], SourceSpec, dict[str, pa.DataType | None]]:
    """What was given, as keys of `[data]`; the source; and its columns, with their types where those are known."""
    import pyarrow.parquet as pq

    from dpdd.common.config import validate
    from dpdd.common.data.formats.spec import SourceSpec, with_format
    from dpdd.common.data.formats.tables import csv_table, parquet_table, sql_query
    from dpdd.common.files.untrusted import reading, require_file

    given: dict[str, Any] = {
        key: value
        for key in ("url", "query", "password_env", "password_file", "separator", "encoding")
        if (value := getattr(options, key)) is not None
    }
    if (options.file is None) == (options.url is None):
        raise ConfigError("name a file, or a database with --url and --query")
    if options.file is not None:
        given = {"path": str(options.file), **given}
    try:
        given = dict(with_format(given))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if given["format"] not in ("csv", "parquet", "sql"):
        raise ConfigError(f"{options.file}: a table is a CSV file, a Parquet file or a database (--url)")
    source = validate(given, SourceSpec, "describe").located(Path())
    if source.format == "sql":
        return given, source, dict.fromkeys(sql_query.header(source, Path()), None)
    if source.format == "csv":
        names, separator = csv_table.header(source.path, options.separator, source.encoding)
        given = {**given, **({} if separator == "," else {"separator": separator})}
        found = source.model_copy(update={"separator": separator})
        return given, found, dict.fromkeys(names, None)
    require_file(source.path, parquet_table.WHAT)
    with reading(source.path, parquet_table.WHAT):
        return given, source, {each.name: each.type for each in pq.read_schema(source.path)}


def _blocks(source: SourceSpec, names: list[str]) -> Iterator[Block]:
    from dpdd.common.data.formats.tables.reading import SOURCES

    return SOURCES[source.format](source, Path(), names, frozenset())


def _quoted(value: object) -> str:
    import json

    return json.dumps(str(value), ensure_ascii=False)
