"""A CSV file as a stream of lines, each of which is one record or none, whatever the others hold.

A cell in quotes may hold separators and doubled quotes, but no line end: an unclosed quote is that line's own trouble
and swallows no other record. Lines longer than `LONGEST_LINE` bytes are left out. Bytes that are no text in the
declared encoding are replaced. So nothing in here depends on what a record holds, but for that record itself.
"""

from __future__ import annotations

import codecs
import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import reading, shown

WHAT = "a CSV file"
LONGEST_LINE = 1 << 20
"""Bytes in UTF-8; a longer line is no record."""
LONGEST_HEADER = 1 << 24
BLOCK = 1 << 22
_NEWLINE, _QUOTE = 10, 34


@dataclass(frozen=True)
class Lines:
    """Whole lines in UTF-8: those that a plain parser can read, one after the other, and the cells of the others."""

    plain: bytes
    odd: list[list[str]]
    unreadable: int
    longest: int
    """Bytes of the longest plain line, at least."""


class Bytes(Protocol):
    """Something to read from."""

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; none at the end."""


class CsvFile:
    """A CSV file that is read from front to back, once: first the header, then blocks of lines."""

    def __init__(self, path: Path, separator: str, encoding: str) -> None:
        self._path, self._separator = path, separator
        with reading(path, WHAT):
            file: IO[bytes] = path.open("rb")
            if file.read(2) == b"\x1f\x8b":
                file.seek(0)
                file = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]
            file.seek(0)
        self._file = file
        utf8 = codecs.lookup(encoding).name in ("utf-8", "ascii", "utf-8-sig")
        self._source: Bytes = file if utf8 else _Recoded(file, encoding)
        self._rest = b""

    def header(self) -> list[str]:
        """The columns' names."""
        names = _cells(self.first_line(), self._separator) or []
        if not any(names):
            raise DataError(f"{shown(self._path)} does not begin with a header line; its first line names the columns")
        return [name.strip() for name in names]

    def first_line(self) -> str:
        """The line with the columns' names, as it is."""
        with reading(self._path, WHAT):
            while b"\n" not in self._rest and len(self._rest) <= LONGEST_HEADER:
                piece = self._source.read(BLOCK)
                if not piece:
                    break
                self._rest += piece
            line, _, self._rest = self._rest.partition(b"\n")
        if len(line) > LONGEST_HEADER:
            raise DataError(f"{shown(self._path)} has no line end in its first {LONGEST_HEADER} bytes")
        text = line.decode("utf-8-sig", errors="replace").rstrip("\r")
        if "\r" in text:
            raise DataError(
                f"{shown(self._path)} has lines that end in a carriage return alone; write it with usual ones"
            )
        return text

    def blocks(self) -> Iterator[Lines]:
        """All other lines, some megabytes at a time."""
        with reading(self._path, WHAT):
            skipping = False
            while True:
                piece = self._source.read(BLOCK)
                data, unreadable = self._rest + (piece or b"\n"), 0
                if skipping:  # what is left of a line that is too long
                    _, end, data = data.partition(b"\n")
                    skipping = not end
                whole = data[: data.rfind(b"\n") + 1]
                self._rest = data[len(whole) :]
                if len(self._rest) > LONGEST_LINE + 1:  # it may end in a carriage return
                    self._rest, skipping, unreadable = b"", True, 1
                if whole or unreadable:
                    yield lines(whole, self._separator, unreadable)
                if not piece:
                    return

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def lines(block: bytes, separator: str, unreadable: int = 0) -> Lines:
    """Sort the lines of a block by how they can be read."""
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        block = block.decode("utf-8", errors="replace").encode()
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    data = np.frombuffer(block, dtype=np.uint8)
    ends = np.flatnonzero(data == _NEWLINE) + 1
    starts = np.concatenate([[0], ends[:-1]])
    too_long = ends - starts > LONGEST_LINE + 1
    suspicious = _suspicious(data, ends, separator) if b'"' in block or b"\r" in block else np.zeros_like(too_long)
    if not (too_long.any() or suspicious.any()):
        return Lines(block, [], unreadable, int((ends - starts).max(initial=0)))
    odd: list[list[str]] = []
    for at in np.flatnonzero(suspicious & ~too_long).tolist():
        cells = _cells(block[starts[at] : ends[at] - 1].decode(), separator)
        if cells is None:
            unreadable += 1
        elif cells:
            odd.append(cells)
    kept = ~(too_long | suspicious)
    plain = block if kept.all() else data[np.repeat(kept, ends - starts)].tobytes()
    return Lines(plain, odd, unreadable + int(too_long.sum()), int((ends - starts)[kept].max(initial=0)))


def _suspicious(data: np.ndarray, ends: np.ndarray, separator: str) -> np.ndarray:
    """Lines whose quotes do not open and close whole cells, or with a carriage return inside.

    In any other line every opening quote follows the line's beginning, a separator or a closing quote, and every
    closing one comes before a separator, the line's end or an opening one. There are as many of both, so the line can
    be read by itself.
    """
    found = np.zeros(len(ends), dtype=bool)
    returns = np.flatnonzero(data == 13)
    found[np.searchsorted(ends, returns, side="right")] = True
    quotes = np.flatnonzero(data == _QUOTE)
    if not len(quotes):
        return found
    before = np.where(quotes > 0, data[quotes - 1], _NEWLINE)
    after = data[quotes + 1]  # a block ends in a newline

    def fine(opening: np.ndarray) -> np.ndarray:
        beside = np.where(opening, before, after)
        whole: np.ndarray = (beside == ord(separator)) | (beside == _NEWLINE) | (beside == _QUOTE)
        return whole

    if not (np.searchsorted(quotes, ends) % 2).any() and fine(np.arange(len(quotes)) % 2 == 0).all():
        return found  # the usual case: an even number in every line, and all in their places
    line = np.searchsorted(ends, quotes, side="right")
    first = np.searchsorted(line, np.arange(len(ends)), side="left")  # each line's first quote
    opening = (np.arange(len(quotes)) - first[line]) % 2 == 0
    found[line[~fine(opening)]] = True
    last = np.append(line[1:] != line[:-1], True)
    found[line[last & opening]] = True  # an odd number of them
    return found


def _cells(line: str, separator: str) -> list[str] | None:
    """The cells of one line, read by itself; None where it cannot be."""
    try:
        rows = list(csv.reader([line], delimiter=separator))
    except csv.Error:
        return None
    return rows[0] if rows else []


class _Recoded:
    """Bytes in another encoding, as UTF-8; what is no text in it is replaced."""

    def __init__(self, file: Bytes, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def read(self, size: int, /) -> bytes:
        """About so many bytes; none at the end only."""
        while True:
            piece = self._file.read(size)
            text = self._decoder.decode(piece, final=not piece)
            if text or not piece:
                return text.encode("utf-8", errors="replace")
