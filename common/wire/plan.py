"""A silo's report to a dry round: whether it would answer a request, what that would cost, and what it declares.

>>> declared = Declared(("cat", "dog"), (1, 8, 8), (0.0, 255.0), "exact")
>>> report = PlanReport("00" * 32, "north", declared, "dpdd 0.1.0", Cost(1.0, 1e-5, 320))
>>> decode_report(encode_report(report)) == report
True
>>> report.would_answer
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from dpdd.common.data.schema import DataSchema, Fit
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.wire.answer import Refusal, decode_answer, encode_answer
from dpdd.common.wire.parsing import MOST_BYTES, check, check_classes, check_name, check_shape, parse
from dpdd.common.wire.request import table_of
from dpdd.v1 import plan_pb2, refusal_pb2

MOST_REPORT = 1 << 20
"""Bytes of a report, most of which can be a class list and a table's columns; it travels as one message."""

_FITS = get_args(Fit)


@dataclass(frozen=True)
class Cost:
    """The (ε, δ) that would be reserved, for all stages together, and roughly how many bytes would be sent."""

    epsilon: float
    delta: float
    bytes: int


@dataclass(frozen=True)
class Declared:
    """What the silo's operator declared about its records; all of it is public."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    value_range: tuple[float, float]
    fit: str
    table: TableSchema | None = None

    @classmethod
    def by(cls, schema: DataSchema) -> Declared:
        """The same, from a schema."""
        return cls(schema.classes, schema.shape, schema.value_range, schema.fit, schema.table)


@dataclass(frozen=True)
class PlanReport:
    """What a silo would do with a request. It depends on request, settings and ledger, never on the records."""

    request_id: str
    silo: str
    declared: Declared
    software: str
    cost: Cost | None = None
    refusal: Refusal | None = None
    asks_operator: bool = False
    paid: bool = False

    @property
    def would_answer(self) -> bool:
        """Whether the silo would answer, maybe after its operator agreed."""
        return self.refusal is None


def encode_report(report: PlanReport) -> bytes:
    """A report as protobuf bytes."""
    return report_to_wire(report).SerializeToString(deterministic=True)


def report_to_wire(report: PlanReport) -> plan_pb2.PlanReport:
    """A report as protobuf."""
    low, high = report.declared.value_range
    message = plan_pb2.PlanReport(
        request_id=bytes.fromhex(report.request_id),
        silo=report.silo,
        declared=plan_pb2.Declared(
            classes=report.declared.classes,
            shape=report.declared.shape,
            lowest=low,
            highest=high,
            fit=report.declared.fit,
            table="" if report.declared.table is None else report.declared.table.text,
        ),
        software=report.software,
        asks_operator=report.asks_operator,
        paid=report.paid,
    )
    if report.cost is not None:
        cost = report.cost
        message.cost.CopyFrom(plan_pb2.Cost(epsilon=cost.epsilon, delta=cost.delta, bytes=cost.bytes))
    if report.refusal is not None:
        message.refusal.CopyFrom(refusal_pb2.Answer.FromString(encode_answer(report.refusal)).refusal)
    return message


def decode_report(data: bytes) -> PlanReport:
    """Any bytes to a checked report, or one WireError."""
    return report_from_wire(parse(plan_pb2.PlanReport, data, most_bytes=MOST_REPORT))


def report_from_wire(message: plan_pb2.PlanReport) -> PlanReport:
    """A parsed report, checked."""
    check(len(message.request_id) == 32, "a report names its request by the 32 bytes of a SHA-256")
    check(0 < len(message.software) <= 100 and message.software.isprintable(), "a report with unprintable software")
    check(message.HasField("declared"), "a report that declares no classes and no shape")
    told = message.HasField("cost") or message.HasField("refusal") or message.paid
    check(told, "a report with neither a cost nor a refusal")
    report = PlanReport(
        request_id=message.request_id.hex(),
        silo=check_name("silo", message.silo),
        declared=_declared(message.declared),
        software=message.software,
        cost=_cost(message.cost) if message.HasField("cost") else None,
        refusal=_refusal(message.refusal) if message.HasField("refusal") else None,
        asks_operator=message.asks_operator,
        paid=message.paid,
    )
    if report.refusal is not None:
        same = (report.refusal.request_id, report.refusal.silo) == (report.request_id, report.silo)
        check(same, "a report with a refusal of another request or by another silo")
    return report


def _declared(message: plan_pb2.Declared) -> Declared:
    low, high = message.lowest, message.highest
    check(math.isfinite(low) and math.isfinite(high) and low < high, "a report whose range of values is none")
    check(message.fit in _FITS, f"a report whose fit is none of {', '.join(_FITS)}")
    table, classes, shape = table_of(message.table), check_classes(message.classes), check_shape(message.shape)
    same = table is None or (classes, shape) == (table.classes, table.shape)
    check(same, "a report whose classes or shape are not its table's")
    return Declared(classes, shape, (low, high), message.fit, table)


def _cost(message: plan_pb2.Cost) -> Cost:
    check(message.epsilon > 0.0, "a report whose epsilon is not positive")  # inf: a simulation without noise
    check(0.0 < message.delta <= 0.01, "a report whose delta does not lie in (0, 0.01]")
    check(message.bytes <= MOST_BYTES, f"a report of more than the {MOST_BYTES} bytes that a release may have")
    return Cost(message.epsilon, message.delta, message.bytes)


def _refusal(message: refusal_pb2.Refusal) -> Refusal:
    refusal = decode_answer(refusal_pb2.Answer(refusal=message).SerializeToString())
    assert isinstance(refusal, Refusal)
    return refusal
