"""SPS, the private half: one streaming pass, one clipped sum and one Gaussian for each stage.

Event: one Gaussian over all statistics and counts of a stage; all stages are reserved together.
Sensitivity: a record adds a count (norm a), its feature statistics (`FeatureStatistics`; clipped to norm r, a record
that sits in k groups counting k times), and either its embedding p to its class's sum together with p ⊗ p, or, in later
stages, residual ⊗ p; the norm of an outer product is the product of the norms. The squares of all these add up to at
most 1, which `ClippedSum` enforces in integers. Adding or removing a record changes the sums by exactly that.
Public: class list, shape, backbone (by SHA-256), projections and groups (from the request's seed), clip and weights,
and what later stages centre on, which is computed from earlier releases.
Private: everything else, counts included.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Contribution, Embedding, Mechanism, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.sps.classifier import residuals
from dpdd.common.methods.sps.feature_statistics import CLASS_SUMS, RESIDUAL, SECOND_MOMENT
from dpdd.common.methods.sps.planning import stage_input
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.methods.sps.specification import specification
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class SPSMechanism(Mechanism[MethodSettings]):
    """Sums of embeddings and feature statistics, in stages."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MethodSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Sum the contributions of all records, and privatise the sum."""
        spec = specification(settings, RunDescription.of(request), request.stage)
        given = {name: torch.from_numpy(array) for name, array in stage_input(request).items()}
        reference = None
        if "rows" in given:
            scale = [torch.full((statistic.width,), spec.weights[statistic.name]) for statistic in spec.statistics]
            reference = given["rows"] * torch.cat(scale)

        def look(images: NDArray[np.float32]) -> NDArray[np.float32]:
            with torch.inference_mode():
                return spec.look(torch.from_numpy(images)).numpy()

        def contributions(looked: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
            with torch.inference_mode():
                classes = torch.from_numpy(labels)
                centre = None if reference is None else reference[classes]
                vectors, embedding = spec.measure_again(torch.from_numpy(looked), centre)
                parts, factors = [vectors.numpy()], {}
                if embedding is not None and request.stage == 0:
                    factors[SECOND_MOMENT] = (embedding.numpy(),) * 2
                    parts.append(embedding.numpy() * np.float32(spec.weights[CLASS_SUMS]))
                elif embedding is not None:
                    wrong = residuals(embedding, classes, given["teacher"])
                    factors[RESIDUAL] = (wrong.numpy(), embedding.numpy())
            parts.append(np.full((len(looked), 1), settings.count_weight, dtype=np.float32))
            return np.concatenate(parts, axis=1), factors

        embedding = Embedding.asked(request, look, spec.turn)
        return privatised_sum(records, spec.layout, contributions, plan, entropy, progress, embedding=embedding)


MECHANISM = SPSMechanism()
