"""A table in a worker: the memory that is foretold is enough, and a ceiling below it is refused before anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.estimates import memory_bound
from dpdd.client.silo import Silo
from dpdd.client.worker.worker import Worker
from dpdd.common.data.table.columns import Categorical, Numeric
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.table.toml import toml_of
from dpdd.common.methods.registry import query
from dpdd.common.methods.request_plan import plan_of, settings_of
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.request import ReleaseRequest

ROWS = 40_000
NUMBERS = tuple(Numeric(name=f"n{at}", low=0, high=100, bins=20, missing=True) for at in range(15))
SCHEMA = TableSchema(label="sick", columns=(*NUMBERS, Categorical(name="sick", categories=("no", "yes"))))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "records.csv"
    cells = np.random.Generator(np.random.PCG64(1)).uniform(-10, 110, (ROWS, len(NUMBERS))).round(3)
    lines = (f"{','.join(map(str, row))},{'yes' if at % 3 else 'no'}\n" for at, row in enumerate(cells.tolist()))
    path.write_text(",".join(SCHEMA.names) + "\n" + "".join(lines))
    return path


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as a_worker:
        yield a_worker


@pytest.mark.parametrize("name", ["sps-table", "column-histograms"])
def test_the_foretold_memory_is_enough(name: str, records: Path, worker: Worker, tmp_path: Path) -> None:
    named = query(name).settings({}).on_wire()
    request = ReleaseRequest("r", name, named, 1.0, 1e-5, SCHEMA.classes, SCHEMA.shape, 1, table=SCHEMA)
    bound = memory_bound(request, settings_of(request), plan_of(request))
    assert bound < 1 << 30
    for folder, ceiling in (("north", bound), ("south", bound - 1)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "silo.toml").write_text(f"""
name = "{folder}"
[data]
format = "csv"
path = "{records}"
{toml_of(SCHEMA)}
[budget]
epsilon = 1.0
delta = 1e-5
[policy]
methods = ["{name}"]
epsilon_per_request = 1.0
approval = "auto"
most_memory = {ceiling}
[ledger]
anchor = "anchor"
""")
        Silo.initialise(tmp_path / folder)
        answer = Silo(tmp_path / folder, worker).answer(request.encode())
        if ceiling < bound:
            assert (
                isinstance(answer, Refusal) and answer.reason is Reason.NOT_ALLOWED and "bytes of memory" in str(answer)
            )
        else:
            assert isinstance(answer, SignedReleaseBytes)
