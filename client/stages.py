"""Methods that release in stages: what a request for one may look like, and what all of them cost together.

Stage 0 is asked without an input (an evaluation, which has one stage, with its models), each later one with a public
input that the coordinator computed from the noisy sums of earlier stages. Privacy: a stage is a Gaussian release whose
sensitivity and noise are fixed beforehand, whatever its input is. Gaussians compose to μ² = Σ 1/σ² for adaptively
chosen queries too (Dong, Roth and Su 2022), so the input may depend on earlier answers. That sum is reserved when stage
0 is asked for, and the ledger gives each stage to one request only.
"""

from __future__ import annotations

from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.filters import Spending
from dpdd.common.wire.request import Kind, ReleaseRequest


def check(request: ReleaseRequest, stages: int, *, first_input: bool = False) -> None:
    """ValueError unless a method with so many stages can be asked for this one.

    With `first_input` its one stage is asked with public arrays (the models of an evaluation). Everything about such a
    request, its arrays included, is in its id, so what is reserved and approved holds for these arrays only.
    """
    if request.kind is Kind.DISTILLED_SET and (request.stage or request.stage_input):
        raise ValueError("a distilled set is asked for once: the silo runs its stages itself")
    if request.stage >= stages:
        raise ValueError(f"there is no stage {request.stage}: {request.method} with these settings has {stages}")
    if first_input and not request.stage_input:
        raise ValueError(f"{request.method} is asked for with arrays, and this request has none")
    if request.stage == 0 and request.stage_input and not first_input:
        raise ValueError("stage 0 has no input")
    if request.stage > 0 and not request.stage_input:
        raise ValueError(f"stage {request.stage} has an input, and this request has none")


def reserved(plan: Plan) -> Spending:
    """What is set aside for all stages when the first is asked for."""
    if plan.whole is None or plan.whole_distance is None:
        return Spending(plan.event, plan.distance)
    return Spending(plan.whole, plan.whole_distance)
