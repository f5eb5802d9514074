"""Who makes generated images for another method: any method with releases of sums of which it makes images, as it is.

A generator's stages come first in those of the method that wants its images (DP-GENG, matching), with its own layouts,
stage inputs and private half, and all of them have one noise. What a generator needs beyond the contract of a `Method`
is an entry here.

>>> sorted(GENERATORS)
['dp-merf', 'private-evolution', 'sps']
>>> Generator.of("dp-merf").settings.features
500
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.dp_merf.method import DPMERF
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.private_evolution.method import PrivateEvolution
from dpdd.common.methods.sps.method import SPS
from dpdd.common.wire.request import Kind, ReleaseRequest

if TYPE_CHECKING:
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


@dataclass(frozen=True)
class Entry:
    """A method, and what it has as a generator unless somebody says otherwise: settings of releases, and of images."""

    method: Method[Any, Any]
    settings: Mapping[str, Any]
    synthesis: Mapping[str, Any]


GENERATORS: Mapping[str, Entry] = {
    each.method.name: each
    for each in (
        Entry(
            DPMERF("dp-merf", "random-feature mean embeddings", "Harder, Adamczewski and Park, AISTATS 2021"),
            {"features": 500},
            {"learning_rate": 0.002, "steps": 500},  # at 0.01 it makes one grey image of everything, on MNIST
        ),
        Entry(PrivateEvolution("private-evolution", "votes of private records", "Lin et al., ICLR 2024"), {}, {}),
        Entry(SPS("sps", "matched moments", "SPS and SPS+"), {}, {"steps": 100, "soft_labels": False}),
    )
}
"""By the name of the method, which is that in `registry`; that module registers DP-GENG, too, so it cannot be asked."""

_NOTHING: Mapping[str, Any] = {}
_made: dict[str, LabelledSet] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Generator:
    """A method with settings, in the part of a generator."""

    method: Method[Any, Any]
    settings: Settings
    synthesis: Settings

    @classmethod
    def of(
        cls, name: str, settings: Mapping[str, Any] = _NOTHING, synthesis: Mapping[str, Any] = _NOTHING
    ) -> Generator:
        """The one with this name and these settings; ConfigError where they do not fit."""
        entry = GENERATORS[name]
        chosen = entry.method
        return cls(
            chosen,
            chosen.settings({**entry.settings, **settings}),
            chosen.synthesis_settings({**entry.synthesis, **synthesis}),
        )

    @property
    def stages(self) -> int:
        """Its releases."""
        return self.method.stages(self.settings)

    @property
    def count_weight(self) -> float:
        """What a record weighs in the counts of its first stage."""
        weight = self.method.count_weight(self.settings, 0)
        if weight is None:
            raise ConfigError(f"{self.method.name} releases no counts, which those who want its images need")
        return weight

    def planned(self, request: ReleaseRequest) -> Plan:
        """Its own plan of one of its stages, which checks what it is asked with; the noise is not used."""
        return self.method.plan(replace(self.asked(request), epsilon=math.inf), self.settings)

    def asked(self, request: ReleaseRequest) -> ReleaseRequest:
        """What a request for one of its stages asks of it."""
        return replace(request, method=self.method.name, settings=self.settings.on_wire(), kind=Kind.STATISTICS)

    def stage_input(self, statistics: Sequence[Statistics], run: RunDescription) -> Mapping[str, NDArray]:
        """What its next stage is asked with."""
        return self.method.stage_input(statistics, self.settings, run)

    def images(self, statistics: Sequence[Statistics], per_class: int, run: RunDescription) -> LabelledSet:
        """So many images of each class, by post-processing of its releases, class after class.

        The last ones are kept: extractors, expert and synthesis want the same.
        """
        own = replace(run.public, images_per_class=per_class)
        releases = statistics[: self.stages]
        with _lock:
            key = self._key(releases, own)
            if key not in _made:
                _made.clear()  # each is asked for by several parts in turn, and is large
                _made[key] = self._make(releases, own)
            return _made[key]

    def _make(self, releases: Sequence[Statistics], run: RunDescription) -> LabelledSet:
        from dpdd.common.synthesis.labelled_set import LabelledSet

        made = self.method.synthesise(releases, self.settings, self.synthesis, run)
        if not isinstance(made, LabelledSet):
            raise ConfigError(f"{self.method.name} makes no images")
        order = np.argsort(made.labels, kind="stable")
        return LabelledSet(np.ascontiguousarray(made.images[order]), made.labels[order], made.classes)

    def _key(self, releases: Sequence[Statistics], run: RunDescription) -> str:
        """The same for what gives the same images."""
        facts: list[Any] = [self.method.name, self.settings.on_wire(), self.synthesis.on_wire(), run.classes, run.shape]
        facts += [run.public_seed, run.images_per_class, run.backbone_sha256.hex()]
        facts += [[each.noise, each.silos] for each in releases]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for each in releases:
            for group in (each.sums, each.stage_input):
                for name in sorted(group):
                    digest.update(f"{name} {group[name].dtype} {group[name].shape}".encode() + group[name].tobytes())
        return digest.hexdigest()
