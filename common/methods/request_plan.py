"""From a request to its plan, for anybody: the silo that answers, the coordinator that believes, the reader who checks.

>>> from dpdd.common.wire.request import ReleaseRequest
>>> request = ReleaseRequest("demo", "dp-merf", {"features": 100}, 1.0, 1e-5, ("cat", "dog"), (1, 8, 8), public_seed=7)
>>> {name: str(each) for name, each in plan_of(request).array_types.items()}
{'embedding': 'int64 (2, 200)', 'count': 'int64 (2, 1)'}
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.plan import ArrayType, Plan
from dpdd.common.methods.registry import AnyMethod, AnyQuery, method, query
from dpdd.common.privacy.events import compose
from dpdd.common.synthesis.distilled_set import IMAGES, ROWS, distilled_set_settings, method_values
from dpdd.common.wire.request import Kind, ReleaseRequest

MOST_PLANS = 16
"""How many plans are kept, each some hundred bytes: by the request's id, since a request may carry large inputs."""

_plans: dict[str, Plan] = {}
_lock = threading.Lock()


def settings_of(request: ReleaseRequest) -> Settings:
    """The method's settings; ConfigError where the request cannot be asked of anybody."""
    chosen: AnyQuery = query(request.method)
    if request.kind not in chosen.release_kinds:
        raise ConfigError(f"{request.method} has no {request.kind.words} to release")
    chosen.check_budget(request.epsilon)
    settings: Settings = chosen.settings(method_values(request))
    stages = 1 if request.kind is Kind.DISTILLED_SET else chosen.stages(settings)
    if request.stage >= stages:
        raise ConfigError(f"there is no stage {request.stage}: {request.method} with these settings has {stages}")
    return settings


def planned(request: ReleaseRequest, settings: Settings) -> Plan:
    """The plan of an answer to `request`: of a distilled set, all stages together; ConfigError, ValueError as there."""
    plan = query(request.method).plan(request, settings)
    return _distilled(plan, request, settings) if request.kind is Kind.DISTILLED_SET else plan


def is_round(request: ReleaseRequest) -> bool:
    """Whether this is a later one of many rounds: then it has the plan of the first, which need not be made again."""
    return request.stage > 0 and request.kind is Kind.STATISTICS and query(request.method).rounds


def plan_of(request: ReleaseRequest) -> Plan:
    """The plan that everybody derives of `request`. The last few are kept, as accounting for samples takes a while."""
    if is_round(request):
        query(request.method).check_round(request, settings_of(request))
        return plan_of(request.first_stage())
    identifier = request.id
    plan = _plans.get(identifier) or planned(request, settings_of(request))
    with _lock:
        _plans.pop(identifier, None)  # the last asked for stays longest
        _plans[identifier] = plan
        while len(_plans) > MOST_PLANS:
            del _plans[next(iter(_plans))]
    return plan


def published_epsilon(request: ReleaseRequest) -> float | None:
    """What the method's paper would say of the noise in an answer, to four digits; None where it says nothing else."""
    settings, chosen = settings_of(request), query(request.method)
    published = chosen.published_epsilon(settings, RunDescription.of(request), plan_of(request))
    return None if published is None else float(f"{published:.4g}")


def images_made(request: ReleaseRequest) -> int:
    """How many images a finished set has for each that is asked for."""
    chosen, asked = method(request.method), distilled_set_settings(request)
    return chosen.images_made(chosen.synthesis_settings(asked.synthesis))


def _distilled(plan: Plan, request: ReleaseRequest, settings: Settings) -> Plan:
    """What the mechanism plans for all its stages together, with the arrays of a set of the asked size."""
    chosen = method(request.method)
    whole = plan.whole or compose(*[plan.event] * chosen.stages(settings))  # without noise there is no whole
    distance = plan.distance if plan.whole_distance is None else plan.whole_distance
    return replace(plan, event=whole, distance=distance, array_types=_set_arrays(chosen, request, settings))


def _set_arrays(chosen: AnyMethod, request: ReleaseRequest, settings: Settings) -> Mapping[str, ArrayType]:
    """A class that is lost in noise is left out, so there may be fewer images than were asked for."""
    asked = distilled_set_settings(request)
    classes, images = len(request.classes), asked.images_per_class * len(request.classes) * images_made(request)
    name, dtype = (IMAGES, "uint8") if request.table is None else (ROWS, "float32")
    arrays = {
        name: ArrayType(dtype, (images, *request.shape), at_most=True),
        "labels": ArrayType("int64", (images,), at_most=True),
    }
    if chosen.count_weight(settings, 0) is not None:
        arrays["counts"] = ArrayType("float32", (classes,))
    run = RunDescription.of(request, asked.images_per_class)
    return {**arrays, **chosen.label_arrays(settings, chosen.synthesis_settings(asked.synthesis), run)}
