"""A run's own report: what left, what that means, what the dataset is worth, and how to make it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpdd.common.errors import ConfigError, DataError
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.product import ReleasedModel
from dpdd.server.cli import main as server
from dpdd.server.report.finished import finished_run
from dpdd.server.report.order import ranked
from dpdd.server.report.run_page import run_page, write_report
from tests.server.finished_runs import CLASSES, SCORES, images, table
from tests.server.report.reported_runs import check_document, reported_run


def page_of(folder: Path) -> str:
    return check_document(run_page(finished_run(folder))).text


def test_what_left_and_what_it_means_for_one_person(tmp_path: Path) -> None:
    card = {"protects_people": True}
    metrics = reported_run(tmp_path, images(), card=card)
    text = page_of(tmp_path)
    epsilon = metrics["privacy"][0]["epsilon"]
    sizes = finished_run(tmp_path).bytes_by_silo
    assert sizes.keys() == {"north", "south"}
    for silo, size in sizes.items():
        (digest,) = next(row for row in metrics["privacy"] if row["silo"] == silo)["release_sha256"]
        assert size == (tmp_path / "store" / digest).stat().st_size
        assert digest[:16] in text
    assert f"ε = {epsilon:g}, δ = 1e-05" in text
    assert "from 50 % to at most" in text and "(e^ε + δ) / (1 + e^ε)" in text
    assert "protects nobody" not in text
    assert "add or remove one labelled record in one silo" in text


def test_hard_labels_by_the_literatures_protocol_stand_first(tmp_path: Path) -> None:
    own = {"mean": 0.7, "std": 0.0, "runs": [0.7], "labels": "hard"}
    scores = {"accuracy": {**SCORES["accuracy"], "convnet-cda": own, "convnet-dd": own}, "metrics": {}}
    assert ranked(scores["accuracy"]) == ["convnet-dd", "convnet", "convnet-cda", "teacher"]
    reported_run(tmp_path, images(), scores=scores)
    text = page_of(tmp_path)
    assert "right on real test data: convnet-dd on hard labels" in text
    shown = ("ConvNet, literature's protocolhard labels", "ConvNet from scratchsoft labels")
    order = [text.index(words) for words in (*shown, "ConvNet of DP-CDA's table 1hard labels", "teacherthe releases")]
    assert order == sorted(order)


@pytest.mark.parametrize("made", ["images", "table", "model"])
def test_every_product_has_a_page(tmp_path: Path, made: str) -> None:
    model = ReleasedModel.of(EvaluationConvNet((1, 8, 8), 2, 4), CLASSES, (1, 8, 8), width=4)
    reported_run(tmp_path, {"images": images(), "table": table(), "model": model}[made], scores={"accuracy": {}})
    document = run_page(finished_run(tmp_path))
    text = check_document(document).text
    assert "Nothing was evaluated in this run." in text
    assert ("data:image/png" in document) == (made == "images")


def test_names_of_classes_and_silos_are_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    changes = {"name": evil, "summary": evil, "classes": [evil, "b"], "silos_without_release": {evil: evil}}
    reported_run(tmp_path, images(), card=changes, lost_in_noise=[evil])
    assert page_of(tmp_path).count(evil) >= 6


def test_a_simulation_says_that_it_protects_nobody(tmp_path: Path) -> None:
    reported_run(tmp_path, images(), card={"protects_people": False})
    assert "it protects nobody" in page_of(tmp_path)


def test_nothing_is_said_of_what_was_not_released(tmp_path: Path) -> None:
    reported_run(tmp_path, images())
    text = page_of(tmp_path)
    assert "How many records were clipped is not known" in text
    assert "0.7" in text  # how far a silo moved the sums, which follows from releases


def test_an_audit_that_is_there_is_shown(tmp_path: Path) -> None:
    reported_run(tmp_path, images())
    assert "Audit" not in page_of(tmp_path)
    (tmp_path / "audit.json").write_text(
        json.dumps({"attack": {"epsilon_bound": 0.36, "guesses": 400}, "passes": True})
    )
    text = page_of(tmp_path)
    assert "attack: epsilon bound" in text and "0.36" in text


def test_an_evaluation_at_the_silos_is_in_what_was_spent(tmp_path: Path) -> None:
    metrics = reported_run(tmp_path, images(), scores={"accuracy": {}})
    both = {"epsilon": 1.8, "delta": 1e-5, "accountant": "analytic Gaussian"}
    judged = [{**row, "epsilon": 0.75, "held_out": True, "together": both} for row in metrics["privacy"]]
    figure = {"mean": 0.81, "low": 0.779, "high": 0.838}
    about = {
        "models": {"teacher": {"accuracy": figure}},
        "silos": ["north", "south"],
        "held_out": True,
        "in_sample": [],
    }
    about |= {"epsilon": 0.75, "delta": 1e-5, "current": True, "privacy": judged}
    card = json.loads((tmp_path / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps({**card, "evaluation_at_silos": judged, "at_silos": about}))
    (tmp_path / "metrics.json").write_text(json.dumps({**metrics, "at_silos": about}))
    text = page_of(tmp_path)
    assert "81.0 (77.9 to 83.8)" in text and "both together" in text and "ε = 0.75" in text
    assert "from 50 % to at most 85.9 %" in text  # of all releases together, not of the first
    assert {each.purpose for each in finished_run(tmp_path).sent} == {"dataset", "evaluation"}


def test_a_public_pool_comes_with_its_licence(tmp_path: Path) -> None:
    pool = {"name": "tiny", "licence": "CC-BY-4.0", "images": 40, "choice": "surest", "set": "selected", "file": "pool"}
    reported_run(tmp_path, images(), card={"pool": pool})
    text = page_of(tmp_path)
    assert "names 40 public images of tiny" in text and "CC-BY-4.0" in text


def test_the_command_that_made_it_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reported_run(tmp_path, images())
    write_report(tmp_path, "dpdd-sim run mine --out 'a b'")
    (tmp_path / "report.html").unlink()
    assert server(["report", str(tmp_path)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert "dpdd-sim run mine --out 'a b'" in check_document((tmp_path / "report.html").read_text()).text


def test_what_is_not_finished_or_not_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no finished run"):
        finished_run(tmp_path)
    reported_run(tmp_path, images())
    digest = next(iter(finished_run(tmp_path).sent)).digest
    (tmp_path / "store" / digest).write_bytes(b"")
    with pytest.raises(DataError, match="cannot be read"):
        finished_run(tmp_path)
    (tmp_path / "card.json").write_text("[]")
    with pytest.raises(DataError, match="no table of facts"):
        finished_run(tmp_path)


def test_nothing_depends_on_when_it_was_written(tmp_path: Path) -> None:
    reported_run(tmp_path, images())
    assert run_page(finished_run(tmp_path)) == run_page(finished_run(tmp_path))
