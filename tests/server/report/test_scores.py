"""Scores as tables: what people saw before there were metrics, and what they see with them."""

from __future__ import annotations

from typing import Any

from dpdd.server.report.scores import continual_table, facts_table, learner_facts, score_table, tables, together_facts


def score(*runs: float, **more: object) -> dict[str, Any]:
    mean = sum(runs) / len(runs)
    return {"mean": mean, "std": abs(runs[-1] - runs[0]) / 2**0.5, "runs": list(runs), **more}


ACCURACY = {
    "convnet": score(0.80, 0.82, labels="teacher"),
    "probe": score(0.5, labels="soft", backbone="gray28"),
    "fine-tune": score(0.25, 0.27, labels="hard", backbone="gray28"),
    "ensemble": score(0.3, labels="hard", backbone="gray28"),
    "teacher": score(0.75),
}


def test_accuracy_alone() -> None:
    expected = """\
learner                      learnt from                     % right on real test data
---------------------------  ------------------------------  -------------------------
ConvNet from scratch         teacher-labelled augmentations  81.0 ± 1.4
linear probe of gray28       soft labels                     50.0
fine-tuned gray28            hard labels                     26.0 ± 1.4
fine-tuned gray28, together  hard labels                     30.0
teacher                      the releases                    75.0"""
    assert score_table({"accuracy": ACCURACY}) == expected
    assert tables({"accuracy": ACCURACY}) == [expected]


def test_a_column_per_metric() -> None:
    accuracy = {name: ACCURACY[name] for name in ("convnet", "teacher")}
    metrics = {
        "macro-roc-auc": {"convnet": score(0.9, 0.95), "teacher": score(0.875)},
        "balanced-accuracy": {"convnet": score(0.8, 0.8), "teacher": score(0.7)},
    }
    expected = """\
learner               learnt from                     % right on real test data  macro ROC AUC  balanced accuracy, %
--------------------  ------------------------------  -------------------------  -------------  --------------------
ConvNet from scratch  teacher-labelled augmentations  81.0 ± 1.4                 0.925 ± 0.035  80.0 ± 0.0
teacher               the releases                    75.0                       0.875          70.0"""
    assert score_table({"accuracy": accuracy, "metrics": metrics}) == expected


def test_older_runs_can_be_read() -> None:
    old = {"convnet": score(0.8, labels="lessons")}
    assert "teacher-labelled augmentations  " in score_table({"accuracy": old})


def test_a_model_is_named() -> None:
    assert "the released model  the releases" in score_table({"accuracy": {"model": score(0.5)}})


def test_continual_figures() -> None:
    learners = {
        "convnet": {"matrix": [], "seen": [0.9, 0.7], "average": 0.7, "forgetting": 0.15},
        "teacher": {"matrix": [], "seen": [0.8, 0.75], "average": 0.7, "forgetting": 0.0},
    }
    metrics: dict[str, Any] = {
        "accuracy": ACCURACY,
        "continual": {"tasks": [["a", "b"], ["c", "d"]], "learners": learners},
    }
    alone = """\
% right on classes seen, after  task 1  task 2  forgetting
------------------------------  ------  ------  ----------
ConvNet from scratch              90.0    70.0        15.0
teacher                           80.0    75.0         0.0"""
    assert continual_table(metrics) == alone and tables(metrics) == [score_table(metrics), alone]
    metrics["continual"]["joint"] = {"convnet": score(0.85)}
    assert [line.split()[-1] for line in continual_table(metrics).splitlines()[2:]] == ["85.0", "0.0"]
    assert "all at once" in continual_table(metrics)


def test_a_run_without_evaluation_shows_nothing() -> None:
    assert tables({"accuracy": {}, "continual": {"tasks": [], "learners": {}}}) == []


def test_classes_without_test_records_are_told_below_the_table() -> None:
    metrics = {"accuracy": {"convnet": score(0.8)}, "absent_classes": ["dog", "emu"]}
    assert tables(metrics)[-1] == "no test record is of dog, emu: averages over classes leave them out"
    assert tables({**metrics, "absent_classes": ["dog"]})[-1].endswith("of dog: averages over classes leave it out")


def test_learners_together_and_those_left_out() -> None:
    accuracy = {"lda": score(0.8, labels="hard"), "mlp": score(0.9, labels="hard")}
    metrics: dict[str, Any] = {
        "accuracy": accuracy,
        "metrics": {"roc-auc-hard": {"lda": score(0.75), "mlp": score(0.65)}},
        "mean_over_learners": {
            "accuracy": {**score(0.85), "learners": 2},
            "roc-auc-hard": {**score(0.7), "learners": 2},
        },
        "best_learner": {
            "accuracy": {"learner": "mlp", "mean": 0.9},
            "roc-auc-hard": {"learner": "lda", "mean": 0.75},
        },
        "learners_left_out": {"adaboost": "it is worse than random"},
    }
    lines = score_table(metrics).splitlines()
    assert [line.split()[-2:] for line in lines[-2:]] == [["85.0", "0.700"], ["90.0", "0.750"]]
    assert lines[-2].startswith("mean of 2 learners ") and lines[-1].startswith("best single ")
    assert tables(metrics)[-1] == "without AdaBoost: it is worse than random"
    real = {"records": 7, "accuracy": {"lda": score(0.95, labels="real")}}
    shown = "\n".join(tables({**metrics, "real": real}))
    assert "trained on 7 real records of the simulated silos" in shown and "real records" in shown and "95.0" in shown
    facts = facts_table(learner_facts(metrics), together_facts(metrics))
    assert [line.split()[-2:] for line in facts.splitlines()[-2:]] == [["85.0", "0.700"], ["90.0", "0.750"]]
    nobody = {"accuracy": {}, "learners_left_out": {"lda": "it has no rows"}}
    assert tables(nobody) == ["without linear discriminant analysis: it has no rows"]
