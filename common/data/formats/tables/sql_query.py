"""The result of an SQL query, read row by row over SQLAlchemy (``pip install 'dpdd[sql]'``) and never written to.

The connection is read only where the database knows that, and is always rolled back. PostgreSQL is asked for text, so
that no value (a day of the year 10000, say) is too odd for the driver; bytes count as text, whether they are UTF-8 or
not. An error names the database without its password, and repeats neither the query nor what the driver says of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from dpdd.common.data.formats.spec import SourceSpec
from dpdd.common.data.formats.tables.block import Block, positions_of
from dpdd.common.data.table.arrow_cells import LONGEST_BYTES, is_text
from dpdd.common.data.table.cells import LONGEST_CELL
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.files.untrusted import shown

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

ROWS = 1 << 13
_NAMES = 60
_SHORT = {
    "postgresql": f"left(CAST({{0}} AS text), {LONGEST_CELL + 1})",
    "sqlite": "CASE WHEN {0} COLLATE BINARY >= '' AND "  # texts and blobs: numbers are less than any text
    f"length(CAST({{0}} AS BLOB)) > {LONGEST_BYTES} THEN NULL ELSE {{0}} END",
}
"""How a database is asked for a cell: one that is too long is not sent whole."""


def blocks(
    spec: SourceSpec, base: Path, wanted: Sequence[str], numbers: Collection[str] = frozenset()
) -> Iterator[Block]:
    """The wanted columns of the query's result."""
    with _connected(spec, base) as connection:
        query = _query(spec)
        chosen = positions_of(list(_result(connection, _nothing_of(query)).keys()), wanted, _where(spec))
        form = _SHORT.get(connection.dialect.name)
        if form is not None:
            quoted = [connection.dialect.identifier_preparer.quote_identifier(name) for name in wanted]
            texts = ", ".join(f"{form.format(name)} AS {name}" for name in quoted)
            query, chosen = f"SELECT {texts} FROM (\n{query}\n) AS records", list(range(len(wanted)))
        for rows in _result(connection, query).partitions(ROWS):
            columns = list(zip(*rows, strict=True))
            yield Block([_column(columns[at]) for at in chosen], len(rows))


def header(spec: SourceSpec, base: Path) -> dict[str, Any]:
    """The columns' names, and what the driver says of their types; no row is read."""
    with _connected(spec, base) as connection:
        result = _result(connection, _nothing_of(_query(spec)))
        described: Any = result.cursor.description if result.cursor is not None else ()
        return {str(each[0]): each[1] for each in described}


def _column(values: Sequence[Any]) -> pa.Array | Sequence[Any]:
    """Values of one plain type as an Arrow array, which is encoded faster; others as they are, to the same codes."""
    try:
        array = pa.array(values)
        if types.is_binary(array.type):  # the text of SQLite
            return array.view(pa.string())
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
    kind = array.type
    plain = is_text(kind) or any(is_(kind) for is_ in (types.is_integer, types.is_floating, types.is_date32))
    return array if plain or types.is_null(kind) else values


def _query(spec: SourceSpec) -> str:
    assert spec.query is not None
    return spec.query.strip().rstrip(";")


def _nothing_of(query: str) -> str:
    """A query with the same columns and no row."""
    return f"SELECT * FROM (\n{query}\n) AS records WHERE 1 = 0"


def _result(connection: Connection, query: str) -> Any:
    return connection.exec_driver_sql(query)


@contextmanager
def _connected(spec: SourceSpec, base: Path) -> Iterator[Connection]:
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise ConfigError("format 'sql' needs SQLAlchemy: pip install 'dpdd[sql]'") from None
    where = _where(spec)
    try:
        engine = _engine(spec, base)
    except (SQLAlchemyError, ImportError, ValueError, TypeError) as error:
        kind = type(error).__name__
        raise ConfigError(f"{where}: url names no database that can be opened ({kind}); is its driver there?") from None
    try:
        with engine.connect() as connection, connection.begin():
            options: dict[str, Any] = {"stream_results": True, "max_row_buffer": ROWS, "no_parameters": True}
            yield connection.execution_options(**options)
    except SQLAlchemyError as error:
        raise DataError(f"{where}: the query failed ({type(error).__name__}); try it in the database itself") from None
    finally:
        engine.dispose()


def _engine(spec: SourceSpec, base: Path) -> Engine:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    url = _url(spec, base)
    backend = url.get_backend_name()
    if backend == "postgresql":
        return create_engine(url, poolclass=NullPool, execution_options={"postgresql_readonly": True})
    engine = create_engine(url, poolclass=NullPool)
    if backend == "sqlite":

        @event.listens_for(engine, "connect")
        def _read_only(connection: Any, _record: object) -> None:
            connection.text_factory = bytes
            connection.execute("PRAGMA query_only = ON")

    return engine


def _url(spec: SourceSpec, base: Path) -> URL:
    """Where the database is, with its password; a file of SQLite is relative to the file that declares it."""
    from sqlalchemy.engine import make_url

    url = make_url(spec.url or "")
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite" and url.database:
        path = base / url.database
        if not path.is_file():
            raise DataError(f"{shown(path)} does not exist; an SQLite database was expected there")
        url = url.set(database=str(path))
    password = _password(spec, base)
    return url if password is None else url.set(password=password)


def _password(spec: SourceSpec, base: Path) -> str | None:
    if spec.password_env is not None:
        password = os.environ.get(spec.password_env)
        if not password:
            raise ConfigError(f"{_where(spec)}: the environment has no variable {spec.password_env} (password_env)")
        return password
    if spec.password_file is None:
        return None
    path = base / spec.password_file
    try:
        return path.read_text(encoding="utf-8").split("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{shown(path)} cannot be read as the file of a password (password_file)") from None


def _where(spec: SourceSpec) -> str:
    """The database in words, without a user or a password."""
    scheme, _, rest = (spec.url or "").partition("://")
    return shown(f"{scheme}://{rest.rpartition('@')[2]}", _NAMES)
