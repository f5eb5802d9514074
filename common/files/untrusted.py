"""Reading untrusted files: what they say about themselves (sizes, names) is checked before it is used.

Every reader of `dpdd` opens its file inside `reading`, so that whatever a damaged file makes a parser do
comes out as one `DataError` with the path in it; takes sizes from headers only after `check_growth`; and
prints names that come from outside with `shown`.

>>> from pathlib import Path
>>> with reading(Path("absent.gz"), "an IDX file"):
...     Path("absent.gz").read_bytes()
Traceback (most recent call last):
dpdd.common.errors.DataError: absent.gz does not exist; an IDX file was expected there
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dpdd.common.errors import DataError, DpddError

SMALL = 1 << 30
"""Up to this many bytes a file may unpack to whatever it likes."""

MAX_GROWTH = 100
"""Beyond `SMALL`, a file may unpack to this many times its own size."""


def shown(name: object, limit: int | None = None) -> str:
    r"""Return `name` fit for a one-line message: control characters escaped, cut to `limit` characters.

    >>> shown("two\nlines"), shown("x" * 50, limit=8)
    ('two\\nlines', 'xxxxxxx…')
    """
    text = str(name)
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn any failure to read `path` as `what` ("an IDX file") into a `DataError`.

    The net is wide on purpose: decoders answer damaged bytes with almost any exception. Keep the block to the
    decoder's own calls.
    """
    try:
        yield
    except DpddError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{shown(path)} does not exist; {what} was expected there") from error
    except IsADirectoryError as error:
        raise DataError(f"{shown(path)} is a folder; {what} was expected there") from error
    except PermissionError as error:
        raise DataError(f"{shown(path)} may not be read by this user; grant read permission") from error
    except Exception as error:
        kind = type(error).__name__
        raise DataError(
            f"{shown(path)} cannot be read as {what} ({kind}): it is damaged, cut short or of another format"
        ) from error


def require_file(path: Path, what: str) -> int:
    """Return the size of the regular file at `path`; a folder, a pipe or nothing at all is a `DataError`."""
    with reading(path, what):
        if path.is_dir():
            raise IsADirectoryError(path)
        size = path.stat().st_size
    if not path.is_file():
        raise DataError(f"{shown(path)} is not a regular file; {what} was expected there")
    return size


def check_growth(path: Path, packed: int, unpacked: int) -> None:
    """Refuse a decompression bomb: `packed` bytes that claim to unpack beyond `SMALL` and `MAX_GROWTH` times that."""
    if unpacked > SMALL and unpacked > MAX_GROWTH * packed:
        raise DataError(
            f"{shown(path)} has {packed} bytes but says it unpacks to {unpacked}, "
            f"more than {MAX_GROWTH} times as many; store it uncompressed if that is true"
        )


def read_up_to(stream: IO[bytes], count: int, chunk: int = 1 << 22) -> bytearray:
    """Read `count` bytes, or fewer where the stream ends; memory grows only with bytes that are there."""
    data = bytearray()
    while len(data) < count:
        piece = stream.read(min(chunk, count - len(data)))
        if not piece:
            break
        data += piece
    return data
