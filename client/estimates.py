"""What an answer takes of the silo's machine, before it is made: memory from the request, CPU time by trying.

`memory_bound` follows from the request, the layout, the batch and the networks alone, so a refusal may rest on it. How
long an answer takes and what it unpacks depends on how many records there are, which is private: `Estimate` is for the
operator's screen, and nothing of it is ever sent (`docs/privacy.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdd.client.config import SiloSettings
from dpdd.client.mechanisms.base import BATCH
from dpdd.client.records.kept import IN_MEMORY
from dpdd.common.config import Settings
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.plan import ENVELOPE, Plan
from dpdd.common.methods.registry import query
from dpdd.common.wire.request import ReleaseRequest

INTERPRETER = 320 << 20
"""Bytes of Python, NumPy, torch and all that is imported."""
TABLE_READER, TABLE_COLUMN = 192 << 20, 4 << 20
"""Bytes of pyarrow's pool while a block of a table is parsed, and what a column of it takes as cells and as codes."""
MEASURED = (2 * BATCH, 8 * BATCH)
"""Made-up records that a mechanism is tried on: the difference says what a record takes."""
REQUEST_COPIES = 3
"""Of a request, in a worker: its bytes, the message that they were parsed to, and its arrays."""
_ROW_BYTES = 8 * 8
_SUM_BYTES = 7 * 8
_BLOCKS = 3
_INDEX_BYTES = 16
_NAME_BYTES = 200
_NAMED = ("image-folder", "csv", "parquet")
_UNPACKED = ("npz", "idx", "csv", "parquet")


def memory_bound(request: ReleaseRequest, settings: Settings, plan: Plan) -> int:
    """An upper bound on the bytes that a worker takes for the sums of an answer, whatever the records are.

    The interpreter, with the request; three blocks of records, read ahead; for each of a batch's rows eight copies in
    double precision (as it is, on the grid, squared, by class, ...); the public networks
    (`Query.working_memory`); for each released number the clean sum, the noise, the noisy sum, and its copies on the
    way out; where there are later stages, embeddings that stay in memory for them; and of a table a block of cells,
    unless one of them is a page of a file by itself. The files' own size does not count, nor making a finished set,
    whose worker has limits all the same.
    """
    chosen, run = query(request.method), RunDescription.of(request)
    layout = chosen.layout(settings, run, request.stage)
    numbers = math.prod(request.shape)
    reading = _BLOCKS * BATCH * numbers * 4
    rows = BATCH * (layout.width + numbers) * _ROW_BYTES
    squares = sum(8 * 4 * (BATCH * sum(each.factors or ()) + each.width) for each in layout.products)
    sums = _SUM_BYTES * max(plan.coordinates, layout.coordinates)
    own = chosen.working_memory(settings, run, request.stage)
    if chosen.stages(settings) > 1:
        own += IN_MEMORY
    if request.table is not None:
        own += TABLE_READER + TABLE_COLUMN * len(request.table.columns)
    return INTERPRETER + REQUEST_COPIES * len(request.encode()) + reading + rows + squares + sums + own


@dataclass(frozen=True)
class Measured:
    """CPU seconds over made-up records of the request's shape."""

    answer: float
    record: float

    @classmethod
    def of(cls, seconds: tuple[float, float]) -> Measured:
        """From what the mechanism took over `MEASURED` records each."""
        few, many = MEASURED
        record = max(seconds[1] - seconds[0], 0.0) / (many - few)
        return cls(max(seconds[0] - few * record, 0.0), record)

    def seconds(self, records: int) -> float:
        """What an answer takes over so many, reading them not included.

        >>> Measured(answer=2.0, record=0.25).seconds(8)
        4.0
        """
        return self.answer + self.record * records


@dataclass(frozen=True)
class Estimate:
    """For the silo's operator only: `records` is how many the silo has, and everything follows from it."""

    records: int
    cpu_seconds: float | None
    memory: int
    disk: int
    bytes: int

    @classmethod
    def of(cls, settings: SiloSettings, plan: Plan, memory: int, measured: Measured | None, records: int) -> Estimate:
        """With the labels and file names that are kept of all records, and the copy that some formats are unpacked to.

        The copy is at most one of all records as single-precision numbers.
        """
        numbers = math.prod(settings.data.shape)
        kept = _INDEX_BYTES + (_NAME_BYTES if settings.data.format in _NAMED else 0)
        unpacked = 4 * numbers * records if settings.data.format in _UNPACKED else 0
        return cls(
            records,
            None if measured is None else measured.seconds(records),
            memory + kept * records,
            plan.bytes + ENVELOPE + unpacked,
            plan.bytes,
        )

    def exceeded(self, settings: SiloSettings) -> list[str]:
        """Which ceilings of the policy it passes: the worker would be ended there."""
        policy = settings.policy
        pairs = {
            "most_cpu_seconds": (self.cpu_seconds, policy.most_cpu_seconds),
            "most_memory": (self.memory, policy.most_memory),
            "most_disk": (self.disk, policy.most_disk),
        }
        return [name for name, (need, most) in pairs.items() if need is not None and most is not None and need > most]
