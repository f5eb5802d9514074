"""The settings of all rows of `dpdd-sim baselines`; `measure` says how they were chosen."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dpdd.common.config import Settings
from dpdd.scenarios.baselines.dp_sgd import DPSGDSettings
from dpdd.scenarios.baselines.federated_heads import FederatedLogisticSettings
from dpdd.scenarios.baselines.private_finetune import FineTuneSettings
from dpdd.scenarios.baselines.private_linear import LogisticSettings
from dpdd.scenarios.baselines.real_records import JudgeSettings
from dpdd.scenarios.baselines.shared_sets import SharedSetsSettings


class BaselineSettings(Settings):
    """Of each row, what trains; `minutes` bound each run of *finetune*; `per_class` features are drawn for *fedpft*."""

    logistic: LogisticSettings = LogisticSettings()
    finetune: FineTuneSettings = FineTuneSettings()
    minutes: Annotated[float, Field(gt=0.0)] = 5.0
    dp_sgd: DPSGDSettings = DPSGDSettings()
    dp_fedavg: DPSGDSettings = DPSGDSettings(rounds=10, local_steps=10, rate=0.1, learning_rate=1.0)
    head: FederatedLogisticSettings = FederatedLogisticSettings()
    per_class: Annotated[int, Field(ge=1)] = 500
    feddm: SharedSetsSettings = SharedSetsSettings(signal="features", image_steps=20)
    fedlap: SharedSetsSettings = SharedSetsSettings(signal="gradients")
    judge: JudgeSettings = JudgeSettings()
