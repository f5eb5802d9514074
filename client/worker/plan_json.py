"""A plan as plain JSON values, for the way between a node and its worker; floats come back as they were."""

from __future__ import annotations

from typing import Any

from dpdd.common.methods.plan import ArrayType, Plan
from dpdd.common.privacy import events
from dpdd.common.privacy.accounting import Guarantee


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """All that a plan says."""
    promised = plan.guarantee
    return {
        "event": events.to_json(plan.event),
        "guarantee": [promised.epsilon, promised.delta, promised.accountant],
        "distance": plan.distance,
        "coordinates": plan.coordinates,
        "arrays": {name: [each.dtype, each.shape, each.at_most] for name, each in plan.array_types.items()},
        "whole": None if plan.whole is None else events.to_json(plan.whole),
        "whole_distance": plan.whole_distance,
    }


def plan_from_json(values: dict[str, Any]) -> Plan:
    """The inverse of `plan_to_json`; KeyError, TypeError or ValueError where it is none.

    >>> plan = Plan(events.Gaussian(3.7), Guarantee(1.0, 1e-5, "exact"), 1e-19, 6, {"sums": ArrayType("int64", (3, 2))})
    >>> plan_from_json(plan_to_json(plan)) == plan
    True
    """
    whole = values["whole"]
    return Plan(
        events.from_json(values["event"]),
        Guarantee(*values["guarantee"]),
        values["distance"],
        values["coordinates"],
        {name: ArrayType(str(kind), tuple(shape), bool(few)) for name, (kind, shape, few) in values["arrays"].items()},
        None if whole is None else events.from_json(whole),
        values["whole_distance"],
    )
