"""Columns are described at a price: simulated, over the exchange, and with one ledger for draft and final schema."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdd.client.silo import Silo
from dpdd.common.data import made_patients
from dpdd.common.data.made_patients import SCHEMA
from dpdd.common.data.table.columns import Categorical, Numeric
from dpdd.common.data.table.schema import TableSchema, table_schema
from dpdd.common.data.table.toml import toml_of
from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.common.wire.answer import Answer, Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.release import open_signed
from dpdd.common.wire.request import ReleaseRequest
from dpdd.scenarios.examples.hospitals import draft_of
from dpdd.scenarios.examples.studies import write
from dpdd.scenarios.simulator.loopback import run_silos
from dpdd.scenarios.simulator.simulate import run
from dpdd.server.cli import main as server
from dpdd.server.report.summary import summary
from dpdd.server.report.verification import checked_run
from dpdd.server.run.scenario import load_scenario

DRAFT = draft_of(SCHEMA)


def draft_file(folder: Path, more: str = "") -> Path:
    table = {name: list(column[:3000]) for name, column in made_patients.raw("train").items()}
    pq.write_table(pa.table(table), folder / "all.parquet")
    path = folder / "draft.toml"
    path.write_text(f"""
name = "draft"
[data]
source = "all.parquet"
silos = 3
{toml_of(DRAFT)}
[privacy]
epsilon = 2.0
[method]
name = "column-histograms"
{more}""")
    return path


def check_proposal(final: TableSchema) -> None:
    """What is proposed is near what the patients are drawn from."""
    assert final.names == SCHEMA.names and final.label == SCHEMA.label
    columns = {column.name: column for column in final.columns}
    for name, low, high in (("age", (0, 35), (80, 110)), ("weight", (30, 60), (110, 180)), ("days", (0, 2), (8, 60))):
        column = columns[name]
        assert isinstance(column, Numeric) and low[0] <= column.low <= low[1] and high[0] <= column.high <= high[1]
    assert columns["weight"].missing and columns["creatinine"].missing  # a twelfth and a seventh of them are
    diagnosis = columns["diagnosis"]
    assert isinstance(diagnosis, Categorical) and set(diagnosis.categories) == {
        "heart",
        "lung",
        "injury",
        "infection",
        "other",
    }


def pasted(text: str) -> TableSchema:
    return table_schema(tomllib.loads(f"[data]\n{text}")["data"], "columns.toml")


def test_a_description_in_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = draft_file(tmp_path)
    metrics = run(str(path), load_scenario(str(path)), tmp_path / "run", Console(), noise_seed=1)
    said = capsys.readouterr().err
    assert "before anybody spends on a description: 14 columns at 3 silos, ε = 2 and δ = 1e-05 each" in said
    text = (tmp_path / "run" / "dataset" / "columns.toml").read_text()
    check_proposal(pasted(text))
    figures = metrics["description"]
    assert abs(figures["records"] - 3000) <= 2 * figures["records_within"]
    assert len(figures["columns"]) == 14 and figures["columns_toml"] == text
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == metrics
    printed = summary(metrics, tmp_path / "run")
    assert text in printed and "LabelledSet" not in printed
    card = checked_run(tmp_path / "run").card
    assert card["method"] == "column-histograms" and card["described"] == list(SCHEMA.names)
    assert "A description of 14 columns" in (tmp_path / "run" / "CARD.md").read_text()
    precise = next(line for line in said.splitlines() if "how often a value occurs" in line)
    promised = float(re.findall(r"± ([0-9,]+)", precise)[0].replace(",", ""))
    assert promised == pytest.approx(figures["columns"][0]["within"], rel=0.1)
    again = run(str(path), load_scenario(str(path)), tmp_path / "run", Console(quiet=True), noise_seed=1)
    assert again["description"] == figures  # silos repeat themselves


def test_a_description_is_verified_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = draft_file(tmp_path)
    run(str(path), load_scenario(str(path)), tmp_path / "run", Console(quiet=True))
    assert server(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert "dataset/columns.toml  the columns" in capsys.readouterr().out
    assert server(["verify", str(tmp_path / "out")]) == 0
    (tmp_path / "out" / "dataset" / "columns.toml").write_text("label = 'age'")
    assert server(["verify", str(tmp_path / "out")]) != 0


def test_what_a_description_has_no_use_for_is_refused(tmp_path: Path) -> None:
    for change, sentence in (
        (("[method]", "[evaluation.at_silos]\nepsilon = 1.0\n[method]"), "evaluation"),
        (('name = "column-histograms"', 'name = "column-histograms"\nmode = "decentralised"'), "cannot release a dist"),
        (("[method]", '[aggregation]\nrule = "precision"\n[method]'), "releases no class counts"),
        (('name = "column-histograms"', 'name = "evaluation"'), "there is no method 'evaluation'"),
    ):
        path = draft_file(tmp_path)
        path.write_text(path.read_text().replace(*change))
        with pytest.raises(ConfigError, match=sentence):
            load_scenario(str(path))
    path.write_text('name = "x"\n[data]\ndataset = "fashion-slice"\n[method]\nname = "column-histograms"\n')
    with pytest.raises(ConfigError, match="column-histograms takes records of kind table"):
        run(str(path), load_scenario(str(path)), tmp_path / "run", Console(quiet=True))


def as_draft(text: str) -> str:
    """A study, or a silo, whose columns are drafts."""
    text = text.replace(toml_of(SCHEMA), toml_of(DRAFT))
    method = re.sub(r"\[method\][^\[]*(\[method.settings\][^\[]*)?", '[method]\nname = "column-histograms"\n', text)
    return method.replace('methods = ["sps-table"]', 'methods = ["column-histograms", "dp-merf"]')


def test_three_hospitals_are_asked_over_the_exchange_and_then_make_a_table(tmp_path: Path) -> None:
    """A CSV file, a Parquet file and a database, as real processes; the final schema takes the draft's place."""
    folders = write("three-hospitals", tmp_path / "study", share=0.2)
    study = tmp_path / "study" / "study.toml"
    original = study.read_text()
    study.write_text(re.sub(r"(?m)^test = .*$", "", as_draft(original)))
    for folder in folders:
        toml = as_draft((folder / "silo.toml").read_text())
        toml = toml.replace("[budget]\nepsilon = 1.0\ndelta = 2e-5", "[budget]\nepsilon = 2.1\ndelta = 2e-5")
        (folder / "silo.toml").write_text(toml)
    silos = [Silo.initialise(folder) for folder in folders]
    metrics = run_silos(silos, str(study), tmp_path / "describe", Console(quiet=True))
    assert {row["silo"] for row in metrics["privacy"]} == {"north", "east", "south"}
    checked_run(tmp_path / "describe")
    final = pasted(metrics["description"]["columns_toml"])
    assert final.names == SCHEMA.names
    for folder in folders:  # as an operator would
        toml = (folder / "silo.toml").read_text()
        (folder / "silo.toml").write_text(toml.replace(toml_of(DRAFT), toml_of(final)))
    request = ReleaseRequest(
        "after", "dp-merf", {"features": 40}, 1.0, 1e-5, final.classes, final.shape, public_seed=1, table=final
    )
    answer = Silo(folders[0]).answer(request.encode())
    assert isinstance(answer, SignedReleaseBytes)
    assert [entry["method"] for entry in paid(Silo(folders[0]))] == ["column-histograms", "dp-merf"]


def paid(silo: Silo) -> list[dict[str, Any]]:
    ledger = silo.ledger()
    try:
        return [dict(entry.body) for entry in ledger.entries() if entry.kind == "reserve"]
    finally:
        ledger.close()


def make_silo(folder: Path, schema: TableSchema, epsilon: float = 1.3) -> Silo:
    folder.mkdir()
    raw = {name: list(column[:200]) for name, column in made_patients.raw("test").items()}
    pq.write_table(pa.table(raw), folder / "records.parquet")
    write_toml(folder, schema, epsilon)
    return Silo.initialise(folder)


def write_toml(folder: Path, schema: TableSchema, epsilon: float, methods: str = "") -> None:
    (folder / "silo.toml").write_text(f"""
name = "north"
[data]
format = "parquet"
path = "records.parquet"
{toml_of(schema)}
[budget]
epsilon = {epsilon}
delta = 2e-5
[policy]
methods = [{methods or '"column-histograms", "dp-merf"'}]
epsilon_per_request = 1.0
approval = "auto"
""")


def ask(method: str, schema: TableSchema, epsilon: float = 1.0) -> ReleaseRequest:
    settings = {"features": 16} if method == "dp-merf" else {}
    return ReleaseRequest("r", method, settings, epsilon, 1e-5, schema.classes, schema.shape, 1, table=schema)


def reason(answer: Answer) -> Reason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


def test_one_ledger_pays_for_the_draft_and_for_what_follows(tmp_path: Path) -> None:
    """Changing the columns changes no budget: what was spent under the draft stays spent."""
    silo = make_silo(tmp_path / "north", DRAFT)
    first = silo.answer(ask("column-histograms", DRAFT).encode())
    assert isinstance(first, SignedReleaseBytes)
    assert set(open_signed(first.data, silo.public_key).arrays) == {"cells"}
    assert reason(silo.answer(ask("dp-merf", SCHEMA).encode())) is Reason.NOT_ALLOWED  # not this silo's schema yet
    write_toml(tmp_path / "north", SCHEMA, 1.3)
    silo = Silo(tmp_path / "north")
    assert silo.answer(ask("column-histograms", DRAFT).encode()) == first  # as long as it is kept, it is repeated
    other = replace(ask("column-histograms", DRAFT), public_seed=2)
    assert reason(silo.answer(other.encode())) is Reason.NOT_ALLOWED
    assert reason(silo.answer(ask("dp-merf", SCHEMA).encode())) is Reason.OVER_BUDGET
    assert isinstance(silo.answer(ask("dp-merf", SCHEMA, 0.6).encode()), SignedReleaseBytes)
    assert [entry["method"] for entry in paid(silo)] == ["column-histograms", "dp-merf"]


def test_whoever_allowed_a_method_has_not_allowed_a_description(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north", DRAFT)
    write_toml(tmp_path / "north", DRAFT, 1.3, '"dp-merf", "sps-table"')
    silo = Silo(tmp_path / "north")
    answer = silo.answer(ask("column-histograms", DRAFT).encode())
    assert reason(answer) is Reason.NOT_ALLOWED and not paid(silo)


def test_hostile_cells_are_counted_by_the_same_rule(tmp_path: Path) -> None:
    """Infinities, text, what is too long: into a bin at the end, into `missing`, into `other`; the others stay put."""
    silo = make_silo(tmp_path / "north", DRAFT)
    (tmp_path / "north" / "silo.toml").write_text(
        (tmp_path / "north" / "silo.toml").read_text().replace('format = "parquet"\npath = "records.parquet"', CSV)
        + "[simulation]\nallow_no_noise = true\n"
    )
    raw = {name: [str(each or "") for each in column[:50]] for name, column in made_patients.raw("test").items()}
    lines = [",".join(cells) for cells in zip(*raw.values(), strict=True)]
    odd = lines[0].split(",")
    odd[0], odd[3], odd[4], odd[6], odd[7] = "1e999", "x" * 5000, "warm", "Ω" * 100, "plague"

    def counts(rows: list[str]) -> list[np.ndarray]:
        (tmp_path / "north" / "records.csv").write_text("\n".join([",".join(raw), *rows]))
        request = replace(ask("column-histograms", DRAFT, float("inf")), public_seed=len(rows))
        answer = Silo(tmp_path / "north").answer(request.encode())
        assert isinstance(answer, SignedReleaseBytes)
        cells = open_signed(answer.data, silo.public_key).arrays["cells"][0] * np.sqrt(14) / 2**20
        return np.split(np.rint(cells).astype(int), np.cumsum(DRAFT.sizes)[:-1])

    one, two = counts(lines), counts([*lines, ",".join(odd)])
    moved = {column.name: np.flatnonzero(b - a).tolist() for column, a, b in zip(DRAFT.columns, one, two, strict=True)}
    known = {column.name: column for column in DRAFT.columns}
    assert moved["age"] == [known["age"].values - 1]
    assert moved["weight"] == [known["weight"].values] and moved["temperature"] == [known["temperature"].values]
    assert moved["sex"] == [2] and moved["diagnosis"] == [4]  # other
    assert all(len(places) == 1 for places in moved.values())


CSV = 'format = "csv"\npath = "records.csv"'
