"""CSV files of tables: any separator, encoding and quoting; what a line holds is that record's own trouble."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdd.common.data.formats import Intake
from dpdd.common.data.formats.tables import csv_lines
from dpdd.common.data.formats.tables.csv_table import suggested_separator
from dpdd.common.errors import DataError
from tests.common.data.formats.tables.sources import NAMES, RECORDS, as_csv, codes, expected, spec

PLAIN = as_csv(RECORDS)


def write(folder: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    (folder / "records.csv").write_bytes(data)
    return folder


def test_records_are_read(tmp_path: Path) -> None:
    assert codes(write(tmp_path, PLAIN), spec("csv")) == expected(RECORDS)


@pytest.mark.parametrize("ends", ["\r\n", "\n\n", "\n"])
@pytest.mark.parametrize("quoted", [False, True])
def test_line_ends_and_quotes(tmp_path: Path, ends: str, quoted: bool) -> None:
    text = PLAIN
    if quoted:
        cells = [[str(cell) for cell in record] for record in [NAMES, *RECORDS]]
        text = "\n".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells)
    assert codes(write(tmp_path, text.replace("\n", ends)), spec("csv")) == expected(RECORDS)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", " "])
def test_separators(tmp_path: Path, separator: str) -> None:
    assert codes(write(tmp_path, as_csv(RECORDS, separator)), spec("csv", separator=separator)) == expected(RECORDS)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-le", "shift_jis"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    data = PLAIN.encode(encoding)
    read_as = "utf-8" if encoding == "utf-8-sig" else encoding
    assert codes(write(tmp_path, data), spec("csv", encoding=read_as)) == expected(RECORDS)


def test_gzipped_files(tmp_path: Path) -> None:
    assert codes(write(tmp_path, gzip.compress(PLAIN.encode())), spec("csv")) == expected(RECORDS)


def test_other_columns_and_another_order(tmp_path: Path) -> None:
    names = [*NAMES[::-1], "free text"]
    text = as_csv([[*record[::-1], 'said "no", then left'] for record in RECORDS], names=names)
    assert codes(write(tmp_path, text), spec("csv")) == expected(RECORDS)


ODD = {
    "too few cells": "1,2,3",
    "too many cells": "1,2,heart,2010-01-01,1,none,more",
    "unclosed quote": '"1,2,heart,2010-01-01,1,none',
    "line end in a cell": '1,2,heart,"2010-01-01\n",1,none',
    "carriage return in a cell": "1,2,heart,2010-01-01,1\r,none",
    "a billion letters, nearly": f"1,2,heart,2010-01-01,1,{'x' * 5_000_000}",
    "spaces": "   ",
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_line_that_is_no_record_is_left_out_and_no_other(tmp_path: Path, what: str, place: int) -> None:
    lines = PLAIN.splitlines()
    lines.insert(1 + place, ODD[what])
    intake = Intake()
    assert codes(write(tmp_path, "\n".join(lines)), spec("csv"), intake) == expected(RECORDS)
    assert intake.unreadable >= 1 and intake.kept == len(RECORDS)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('5" pipe,2,heart,2010-01-01,1,none', ('5" pipe', "2", "heart", "2010-01-01", "1", "none")),
        ('"4"2,2,heart,2010-01-01,1,none', ("42", "2", "heart", "2010-01-01", "1", "none")),
        ('1,2,heart,2010-01-01,1,"none', ("1", "2", "heart", "2010-01-01", "1", "none")),
        (",,heart,,1,", ("", "", "heart", "", "1", "")),
        (f"{'9' * 5000},2,heart,2010-01-01,1,none", ("", "2", "heart", "2010-01-01", "1", "none")),
        ("٣,2,lung,x,y,z", ("3", "2", "lung", "", "y", "")),
        ("1_0,1e999,lung,9999-12-31,y,z", ("10", "inf", "lung", "9999-12-31", "y", "")),
        ("1,2,\0,2010-01-01,1,none", None),
        (" 42 ,\t2 , heart ,2010-01-01 , 1, none", (42, "2", "heart", "2010-01-01", "1", "none")),
    ],
)
def test_odd_cells_follow_the_rule(tmp_path: Path, line: str, record: tuple[str, ...] | None) -> None:
    wanted = RECORDS if record is None else [*RECORDS, record]
    assert codes(write(tmp_path, PLAIN + line), spec("csv")) == expected(wanted)


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    odd = b"1,\xff,heart,2010-01-01,\xe2\x28,none\n2,1,heart,2010-01-01,1,none\xe2"
    base = write(tmp_path, PLAIN.encode() + odd)
    more = [("1", "", "heart", "2010-01-01", "?", "none"), ("2", "1", "heart", "2010-01-01", "1", "")]
    assert codes(base, spec("csv")) == expected([*RECORDS, *more])


def test_a_missing_label_or_a_missing_cell_where_none_may_be(tmp_path: Path) -> None:
    intake = Intake()
    base = write(tmp_path, PLAIN + "1,2,,2010-01-01,1,none\n1,2,kidney,2010-01-01,1,none\n1,2,heart,2010-01-01,,none\n")
    assert codes(base, spec("csv"), intake) == expected(RECORDS)
    assert intake == Intake(kept=5, unreadable=0, dropped={"ward": 2, "code": 1})


cell = st.one_of(
    st.sampled_from(["42", "heart", "lung", "", '"', '""', "a,b", "\r", "2010-01-01", "1e5", "\0", "x" * 5000, "é"]),
    st.text(alphabet=',";ab1\r\t "', max_size=6),
)
odd_lines = st.one_of(st.lists(cell, min_size=1, max_size=8).map(",".join), st.binary(max_size=20).map(repr))


@given(st.lists(odd_lines, max_size=12), st.integers(min_value=0, max_value=12))
@settings(max_examples=60, deadline=None)
def test_what_a_line_becomes_depends_on_no_other_line(lines: list[str], cut: int) -> None:
    """All lines together give what each gives alone, wherever blocks begin and end."""

    def cells(part: list[str]) -> list[list[str]]:
        block = "".join(f"{line}\n" for line in part).encode()
        sorted_out = csv_lines.lines(block, ",")
        plain = [csv_lines._cells(line.decode(), ",") or [] for line in sorted_out.plain.split(b"\n")]
        return sorted(row for row in [*plain, *sorted_out.odd] if row)

    whole = cells(lines)
    assert whole == sorted(row for line in lines for row in cells([line]))
    assert whole == sorted([*cells(lines[:cut]), *cells(lines[cut:])])


@given(st.lists(odd_lines, max_size=10), st.integers(min_value=1, max_value=40))
@settings(max_examples=12, deadline=None)
def test_where_blocks_end_makes_no_difference(lines: list[str], size: int) -> None:
    body = "\n".join([*lines, *PLAIN.splitlines()[1:], *lines])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        base = write(Path(folder), f"{','.join(NAMES)}\n{body}")
        whole = codes(base, spec("csv"))
        patch.setattr(csv_lines, "BLOCK", size)
        assert codes(base, spec("csv")) == whole


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "does not begin with a header line"),
        (as_csv(RECORDS, ";"), r'one column only.* is separator = ";"\?'),
        (as_csv(RECORDS, ";"), r'one column only.* is separator = ";"\?'),
        ("age,dose\n1,2\n", "has no column 'ward'; its columns are: 'age', 'dose'"),
        (PLAIN.replace("dose", "age", 1), "has the column 'age' more than once"),
        (PLAIN.replace("\n", "\r"), "carriage return alone"),
    ],
)
def test_what_is_wrong_with_the_header_is_said(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        codes(write(tmp_path, text), spec("csv"))


def test_a_file_that_is_cut_short_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="damaged, cut short"):
        codes(write(tmp_path, gzip.compress(PLAIN.encode())[:-12]), spec("csv"))


def test_the_separator_of_a_header_is_only_suggested() -> None:
    assert [suggested_separator(f"a{each}b{each}c") for each in ",;\t|"] == [",", ";", "\t", "|"]
