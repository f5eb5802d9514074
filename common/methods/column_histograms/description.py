"""A table's columns, described: what noisy histograms say of them, and the final columns as TOML to paste.

It is what a run of column histograms makes, in place of a dataset.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.table.toml import column_toml, label_toml
from dpdd.common.files.atomic import write_atomically
from dpdd.common.methods.column_histograms.histogram import CERTAIN, histograms, record_count
from dpdd.common.methods.column_histograms.proposal import ProposedColumn, proposals
from dpdd.common.synthesis.product_files import COLUMNS, file_sha256
from dpdd.common.synthesis.statistics import Statistics


@dataclass(frozen=True, eq=False)
class TableDescription:
    """What is proposed for the columns of a draft schema, of how many records, more or less (95 of 100 times)."""

    draft: TableSchema
    columns: tuple[ProposedColumn, ...]
    records: float
    within: float

    @classmethod
    def of(cls, draft: TableSchema, statistics: Statistics) -> TableDescription:
        """From the sums over silos of the histograms under this draft."""
        found = histograms(draft, statistics)
        records, spread = record_count(found)
        return cls(draft, proposals(found, draft.label), records, CERTAIN * spread)

    @property
    def classes(self) -> tuple[str, ...]:
        """The draft's, which silos were asked with."""
        return self.draft.classes

    @property
    def teacher(self) -> None:
        """There is none: nothing is learnt."""

    @property
    def facts(self) -> dict[str, Any]:
        """What a data card says of it."""
        return {"described": [each.column.name for each in self.columns], "label": self.draft.label, "file": COLUMNS}

    @property
    def figures(self) -> dict[str, Any]:
        """Every figure, for programs."""
        return {
            "records": self.records,
            "records_within": self.within,
            "columns": [each.figures for each in self.columns],
        }

    @property
    def text(self) -> str:
        """The keys of `[data]` for a scenario and for every `silo.toml`, each column under what is known of it."""
        head = f"about {self.records:,.0f} records, ± {self.within:,.0f}; ± and ranges hold 95 of 100 times each"
        parts = [f"{_comment(head)}\n{label_toml(self.draft.label)}"]
        parts += [f"{_comment(each.why)}\n{column_toml(each.column)}" for each in self.columns]
        return "\n\n".join(parts) + "\n"

    def save(self, folder: Path) -> str:
        """Write ``columns.toml`` into `folder`; its SHA-256."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / COLUMNS, self.text.encode())
        return file_sha256(folder / COLUMNS)


def _comment(text: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return textwrap.fill(printable, 116, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
