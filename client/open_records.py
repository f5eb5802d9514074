"""Records that stay open between the stages of a run, in the process that reads them, with the embeddings they keep.

A real silo's worker stays for the stages of a run and is handed its records itself (`dpdd.client.worker.jobs`). This is
for simulated silos, whose people do not exist and which are read in the simulator's own process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpdd.client.answering import Assignment, is_last, opened_records, stays
from dpdd.client.records import Records
from dpdd.common.progress import Progress

MOST_OPEN = 32
"""Silos whose records are open at a time: each has a file or two."""


class OpenRecords:
    """At most one run's records for each silo folder, until its last stage."""

    def __init__(self) -> None:
        self._open: dict[Path, tuple[str, Records]] = {}

    def of(self, assignment: Assignment, progress: Progress) -> Records | None:
        """The records that an answer is made of; None where they are not to stay, so that whoever asks opens them."""
        folder = assignment.folder
        if assignment.settings.simulation is None or not stays(assignment.request):
            return None
        key = same_records(
            assignment,
            {
                "settings": assignment.settings.model_dump(mode="json"),
                "holdout_key": None if assignment.holdout_key is None else assignment.holdout_key.hex(),
            },
        )
        known, records = self._open.pop(folder, ("", None))
        if records is None or known != key:
            if len(self._open) >= MOST_OPEN:
                return None
            records = opened_records(assignment, progress)
        if not is_last(assignment.request):
            self._open[folder] = (key, records)
        return records

    def __repr__(self) -> str:
        return "OpenRecords(private)"


def same_records(assignment: Assignment, header: Mapping[str, Any]) -> str:
    """What two stages have in common that may be answered from one opening: the run, and whose records they are."""
    same = {"folder": str(assignment.folder), **{name: header[name] for name in ("settings", "holdout_key")}}
    return json.dumps([assignment.request.first_stage().id, same], sort_keys=True)
