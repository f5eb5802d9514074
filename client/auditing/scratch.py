"""A silo that exists for one audit: its records are canaries, and perhaps a copy of others; it has a ledger of its own.

It says of itself that it is a simulation, so it has no anchor beside those of real silos, and each of its releases says
that it protects nobody. Everything else is as in a real one: files that are read by the loader, `Silo.answer`, its
policy, its ledger, its outbox. Whoever makes it removes the folder.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpdd.client.silo import Silo
from dpdd.common.data.table.toml import toml_of
from dpdd.common.methods.registry import query
from dpdd.common.methods.request_plan import settings_of
from dpdd.common.synthesis.arrow_table import arrow_table
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.wire.request import ReleaseRequest


def scratch_silo(
    folder: Path,
    request: ReleaseRequest,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    noise_seed: int | None = None,
) -> Silo:
    """A silo in `folder`, new, with these records and just the budget and the policy that `request` takes."""
    folder.mkdir(mode=0o700, parents=True)
    chosen, settings = query(request.method), settings_of(request)
    seed = "" if noise_seed is None else f"noise_seed = {noise_seed}\n"
    unprotected = math.isinf(request.epsilon)
    epsilon = 1.0 if unprotected else request.epsilon
    (folder / "silo.toml").write_text(
        f"""\
name = "audit"

[data]
{_data_files(folder, request, features, labels)}

[budget]
epsilon = {epsilon!r}
delta = {request.delta!r}

[policy]
methods = [{json.dumps(request.method)}]
epsilon_per_request = {epsilon!r}
delta_per_request = {request.delta!r}
approval = "auto"
backbones = {json.dumps(list(chosen.backbones(settings)))}
public_datasets = {json.dumps(list(chosen.public_datasets(settings)))}

[simulation]
allow_no_noise = {str(unprotected).lower()}
{seed}""",
        encoding="utf-8",
    )
    return Silo.initialise(folder)


def _data_files(folder: Path, request: ReleaseRequest, features: NDArray[np.float32], labels: NDArray[np.int64]) -> str:
    """Write the records; the lines of `[data]` that say where they are."""
    if request.table is not None:
        rows = LabelledSet(features, labels, request.classes, schema=request.table)
        pq.write_table(arrow_table(rows), folder / "records.parquet")
        return f'format = "parquet"\npath = "records.parquet"\n{toml_of(request.table)}'
    names = np.array(request.classes)[labels]
    np.savez(folder / "records.npz", images=features.astype(np.float32), labels=names)
    classes, shape = json.dumps(list(request.classes), ensure_ascii=False), json.dumps(list(request.shape))
    return f'format = "npz"\npath = "records.npz"\nclasses = {classes}\nshape = {shape}\nvalue_range = [0.0, 1.0]'
