"""``dpdd-sim baselines``: honest tables on every backbone, tuning that never sees the private data, and its command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpdd.common import datasets
from dpdd.common.cli import Commands
from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone as backbones
from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian, parts
from dpdd.common.synthesis.portrait import Portrait
from dpdd.common.synthesis.sps import MethodSettings
from dpdd.scenarios import baselines, private_plans, private_settings, private_tuning
from dpdd.scenarios.private_classifiers import METHODS, Row, assign, key, run, settings_for
from dpdd.scenarios.private_features import USUAL, Features, extracted
from dpdd.scenarios.private_finetune import FineTuneSettings, SgdSettings
from dpdd.scenarios.private_linear import ClosedFormSettings, LogisticSettings, with_bias
from dpdd.scenarios.private_plans import SLACK, Budget, Plan
from dpdd.scenarios.private_task import Task, prepare
from tests.scenarios.small_images import stripes, tiny_network

FEW = {  # full batches, which are quick to account for
    "logistic": LogisticSettings(steps=5, rate=1.0),
    "finetune": FineTuneSettings(head=LogisticSettings(steps=3, rate=1.0), batch=1000, steps=2),
    "scratch": SgdSettings(batch=1000, steps=2),
}
SAMPLED = {
    "logistic": LogisticSettings(steps=5, rate=0.2),
    "finetune": FineTuneSettings(head=LogisticSettings(steps=3, rate=0.2), batch=120, at_once=120, steps=2),
}


def save(path: Path, network: Any) -> str:
    backbones.save(path, network, backbones.Provenance("stripes", "none needed", 0.3, "none", 0))
    return str(path)


@pytest.fixture
def small_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(datasets, "load", lambda name, split: stripes(600 if split == "train" else 90, len(split)))
    return save(tmp_path / "tiny", tiny_network())


@pytest.fixture
def task(small_world: str) -> Task:
    (found,) = prepare(backbones.load(small_world), stripes(600, 0), stripes(90, 1))
    return found


def command(*arguments: str) -> int:
    commands = Commands("dpdd-sim", "test")
    baselines.add_to(commands)
    return commands.main(["baselines", *arguments])


# features


@pytest.mark.parametrize("name", ["gray28", "rgb32", "scatter28", "scatter32"])
def test_every_shipped_backbone_gives_what_the_portrait_of_sps_has(name: str) -> None:
    backbone = backbones.load(name)
    architecture = backbone.card.architecture
    shape = (architecture.channels, architecture.height, architecture.width)
    images = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (5, *shape), dtype=np.uint8)
    whitened, raw = extracted(backbone.network, images, [Features(), Features(None)], "features")
    pictures = torch.from_numpy(images).float() / 255
    with torch.inference_mode():
        features = backbone.network.features(pictures)
        kept = Features().count(backbone.network)
        portrait = Portrait(kept, side=0, channels=shape[0]).of(backbone.network, pictures, features)[:, :kept]
    directions = portrait / portrait.norm(dim=1, keepdim=True)
    rows = whitened[:, :-1] / np.linalg.norm(whitened[:, :-1].astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(rows, directions.numpy(), atol=5e-4)
    assert kept == min(512, features.shape[1]) and raw.shape[1] == features.shape[1] + 1
    assert Features().described(backbone) == f"{name}, {kept} whitened"


def test_as_many_features_as_sps_has() -> None:
    assert MethodSettings().features == USUAL == 512


def test_raw_features_and_fewer_features(small_world: str) -> None:
    backbone, images = backbones.load(small_world), stripes(40, 9).images
    kinds = [Features(None), Features(3), Features(400)]
    found = extracted(backbone.network, images, kinds, "features")
    plain = backbone.network.features(torch.from_numpy(images).float() / 255)
    for kind, rows in zip(kinds, found, strict=True):
        expected = with_bias(kind.of(backbone.network, plain).numpy()) * 2**13
        np.testing.assert_allclose(rows, expected, atol=1.5)
    assert [kind.described(backbone) for kind in kinds] == ["tiny, 6 raw", "tiny, 3 whitened", "tiny, 6 whitened"]


def test_features_without_a_map_are_said_to_be_raw(tmp_path: Path) -> None:
    network = tiny_network()
    network.whitening = type(network.whitening)(6)
    assert Features().described(backbones.load(save(tmp_path / "unfitted", network))) == "unfitted, 6 raw"


# which runs where


@pytest.fixture(scope="module")
def scattered() -> list[Task]:
    images = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (120, 1, 28, 28), dtype=np.uint8)
    data = datasets.LabelledImages(images, np.arange(120, dtype=np.int64) % 3, ("a", "b", "c"))
    return prepare(backbones.load("scatter28"), data, data.subset(np.arange(9)), [Features(), Features(None)])


def test_on_a_scattering_transform_dp_sgd_starts_from_scratch_and_says_so(scattered: list[Task]) -> None:
    pairs, notes = assign(["finetune", "scratch", "lda", "logistic"], scattered)
    where = [key(*pair) for pair in pairs]
    assert where == [
        "scratch: pixels",
        "lda: scatter28, 512 whitened",
        "logistic: scatter28, 512 whitened",
        "logistic: scatter28, 3,969 raw",
    ]
    assert len(notes) == 2 and "no weights to fine-tune" in notes[0] and "left out on scatter28, 3,969 raw" in notes[1]
    rows = run(pairs, [Budget(2.0, 1e-3)], 1, settings={**FEW, "lda": ClosedFormSettings()})
    assert [row.method for row in rows] == [pair[0] for pair in pairs]
    assert all(0.0 <= row.accuracy.mean <= 1.0 and row.guarantee.epsilon <= 2.0 for row in rows)


def test_settings_of_a_place_count_more_than_those_of_a_method(task: Task) -> None:
    here = {"lda": ClosedFormSettings(strength=0.7), key("lda", task): ClosedFormSettings(strength=0.6)}
    assert settings_for("lda", task, here) == ClosedFormSettings(strength=0.6)
    assert settings_for("lda", task, {"lda": here["lda"]}) == here["lda"]
    assert settings_for("lda", task) == private_settings.USUAL["lda"]
    with pytest.raises(ConfigError, match="another method"):
        run([("ridge", task)], [Budget(1.0, 1e-5)], 1, settings={"ridge": LogisticSettings()})


def test_shipped_settings_are_of_their_methods_and_places() -> None:
    for where, settings in private_settings.TUNED.items():
        method, _, place = where.partition(": ")
        assert type(settings) is type(private_settings.USUAL[method])
        assert place == "pixels" or place.split(",")[0] in backbones.available()


# what a row costs


def test_sampled_baselines_are_accounted_as_sampled(task: Task) -> None:
    pairs = [(method, task) for method in ("logistic", "finetune")]
    rows = run(pairs, [Budget(0.3, 1e-5)], seeds=1, settings=SAMPLED)
    for row in rows:
        assert all(isinstance(part, Gaussian) or part.rate == 0.2 for part in parts(row.event))  # type: ignore[union-attr]
        assert row.guarantee.accountant == "privacy-loss distribution"
        assert guarantee(row.event, 1e-5).epsilon <= row.guarantee.epsilon <= 0.3 < 1.01 * row.guarantee.epsilon
    steps = [[(type(part), getattr(part, "steps", 1)) for part in parts(row.event)] for row in rows]
    assert steps[0] == [(PoissonGaussian, 5), (Gaussian, 1)]
    assert steps[1] == [(PoissonGaussian, 3), (Gaussian, 1), (PoissonGaussian, 2)], "both phases are paid for"
    assert guarantee(parts(rows[1].event)[0], 1e-5).epsilon < 0.5 * 0.3, "the first phase keeps to its share"


def test_what_is_run_is_what_was_accounted(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpdd.scenarios import private_finetune, private_linear

    seen: list[tuple[str, float, int]] = []
    linear, train = private_linear.logistic, private_finetune.train

    def watched_linear(*arguments: Any) -> Any:
        seen.append(("linear", arguments[4], arguments[3].steps))
        return linear(*arguments)

    def watched_train(*arguments: Any, **more: Any) -> int:
        seen.append(("network", arguments[5], arguments[4]))
        return train(*arguments, **more)

    monkeypatch.setattr(private_linear, "logistic", watched_linear)
    monkeypatch.setattr(private_finetune, "train", watched_train)
    (row,) = run([("finetune", task)], [Budget(1.0, 1e-5)], 1, settings=FEW)
    first, _, second = parts(row.event)
    assert isinstance(first, Gaussian) and isinstance(second, Gaussian)
    assert seen == [("linear", first.sigma, first.releases), ("network", second.sigma, second.releases)]


def test_minutes_mean_fewer_steps(task: Task) -> None:
    (row,) = run([("finetune", task)], [Budget(1.0, 1e-5)], 1, settings=FEW, minutes=1e-6)
    assert parts(row.event)[-1].releases == 1  # type: ignore[union-attr]


def test_the_vouched_epsilon_is_that_of_the_event(task: Task) -> None:
    (row,) = run([("ridge", task)], [Budget(0.5, 1e-6)], seeds=1)
    assert isinstance(row.event, Gaussian) and row.guarantee.epsilon == 0.5
    assert 0.499 < guarantee(row.event, 1e-6).epsilon <= 0.5


def test_a_run_that_costs_more_than_its_budget_is_an_error(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "noise", lambda self, event_of, share=1.0: 1.0)
    with pytest.raises(RuntimeError, match="but costs"):
        run([("lda", task)], [Budget(0.5, 1e-5)], 1)


def test_a_grid_too_coarse_for_its_noise_is_an_error(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = SLACK * 1e-5 / (1.0 + math.e)
    for distance, fine in ((0.9 * limit, True), (1.1 * limit, False)):
        monkeypatch.setattr(
            private_plans, "_closed_form", lambda *_, d=distance: Plan(Gaussian(9.0), d, lambda entropy: 0.0)
        )
        if fine:
            run([("lda", task)], [Budget(1.0, 1e-5)], 1)
        else:
            with pytest.raises(ConfigError, match="too coarse"):
                run([("lda", task)], [Budget(1.0, 1e-5)], 1)


def test_a_generous_budget_is_nearly_as_good_as_none(task: Task) -> None:
    full = {"logistic": LogisticSettings(steps=200, rate=1.0, learning_rate=10.0, clip=0.3)}
    pairs = [(method, task) for method in ("probe", "logistic", "lda", "ridge")]
    rows = run(pairs, [Budget(32.0, 1e-3), Budget(math.inf, 1e-3)], seeds=2, settings=full)
    assert [row.method for row in rows] == ["probe", "logistic", "logistic", "lda", "lda", "ridge", "ridge"]
    assert min(row.accuracy.mean for row in rows) > 0.85, rows
    assert [len(row.accuracy.runs) for row in rows] == [1, 2, 1, 2, 1, 2, 1]
    repeated = run([("lda", task)], [Budget(32.0, 1e-3)], seeds=2)
    assert repeated[0].accuracy == rows[3].accuracy


@pytest.mark.parametrize("method", [method for method in METHODS if method != "probe"])
def test_infinite_budgets_say_that_nothing_is_protected(
    method: str, small_world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpdd.common.privacy import discrete_gaussian

    def none(*_: Any) -> Any:
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(discrete_gaussian, "sample", none)
    side = 16 if method == "scratch" else 8
    data = prepare(backbones.load(small_world), stripes(120, 0, side), stripes(30, 1, side), rows=method != "scratch")
    (row,) = run([(method, data[0])], [Budget(math.inf, 1e-5)], seeds=3, settings=FEW)
    assert isinstance(row.event, NonPrivate) and math.isinf(row.guarantee.epsilon) and len(row.accuracy.runs) == 1
    with pytest.raises(AssertionError, match="noise was drawn"):
        run([(method, data[0])], [Budget(1.0, 1e-5)], seeds=1, settings=FEW)


# tuning


def test_tuning_takes_the_best_and_says_what_it_tried(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(method: str, task: Task, budget: Budget, settings: Any, **_: Any) -> Plan:
        def score(entropy: Entropy) -> float:
            return 1.0 - abs(math.log(settings.clip / 0.1)) / 10 - abs(settings.steps - 100) / 1000

        return Plan(NonPrivate(), 0.0, score)

    monkeypatch.setattr(private_tuning, "plan_for", plan)
    space = {"clip": (0.03, 0.1, 0.3), "steps": (50, 100, 300)}
    lines: list[str] = []
    start = LogisticSettings(clip=0.3, steps=300)
    best = private_tuning.tune("logistic", task, Budget(1.0, 1e-5), lines.append, space=space, start=start)
    assert (best.clip, best.steps, best.rate) == (0.1, 100, start.rate)  # type: ignore[attr-defined]
    assert len(lines) == len(set(lines)), "nothing is tried twice"
    assert "80.00 %" not in lines[-1] and any("100.00 %  clip=0.1 steps=100  best so far" in line for line in lines)


def test_spaces_hold_settings_that_exist() -> None:
    assert private_tuning.SPACES.keys() == private_settings.USUAL.keys()
    for method, space in private_tuning.SPACES.items():
        for name, values in space.items():
            for value in values:
                changed = {**private_settings.USUAL[method].model_dump(), name: value}
                type(private_settings.USUAL[method]).model_validate(changed)


def test_the_private_dataset_is_not_loaded_for_tuning(
    small_world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = []
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name, split: loaded.append(name) or load(name, split))
    saved = tmp_path / "found.json"
    tune = ["--backbone", small_world, "--tune-on", "mnist", "--methods", "probe", "lda", "--epsilon", "0.5"]
    assert command(*tune, "--quiet", "--save", str(saved)) == 0
    out, _ = capsys.readouterr()
    assert set(loaded) == {"mnist"} and "in place of fashion-mnist" in out and "chosen for lda: tiny" in out
    found = private_settings.read(saved)
    assert (
        list(found) == ["lda: tiny, 6 whitened"] and f"chosen for lda: tiny, 6 whitened: {found.popitem()[1]!r}" in out
    )
    assert command("--backbone", small_world, "--settings", str(saved), "--methods", "lda", "--json") == 0
    settings = json.loads(capsys.readouterr().out)["rows"][0]["settings"]
    assert settings == json.loads(saved.read_text())["lda: tiny, 6 whitened"]


@pytest.mark.parametrize("name, private", [("mnist", "mnist"), ("fashion-slice", "fashion-mnist")])
def test_tuning_on_the_private_dataset_is_refused(name: str, private: str) -> None:
    with pytest.raises(ConfigError, match="would leak it"):
        private_tuning.proxy(name, private)


def test_a_proxy_without_a_test_set_is_cut_in_two() -> None:
    labels = np.repeat(np.arange(40, dtype=np.int64), 15)
    images = np.broadcast_to(labels.astype(np.uint8)[:, None, None, None], (600, 3, 2, 2)).copy()
    train, test = private_tuning.grouped(datasets.LabelledImages(images, labels, tuple(map(str, range(40)))), 300)
    assert (len(train), len(test), len(train.classes)) == (250, 50, 10)
    for part in (train, test):
        assert (part.images[:, 0, 0, 0] // 4 == part.labels).all(), "ten groups of neighbours"
        assert len(set(part.labels.tolist())) == 10, "shuffled"


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("{", "no JSON"),
        ("[]", "an object"),
        ('{"magic": {}}', "no method 'magic'"),
        ('{"lda": {"x": 1}}', "no such key"),
    ],
)
def test_bad_settings_get_one_sentence(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        private_settings.read(tmp_path / "s.json")


# the command


def test_the_command_prints_what_each_row_costs(small_world: str, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--backbone", small_world, "--epsilon", "0.1", "--seeds", "2"]
    assert command(*shared, "--json", "--methods", "probe", "lda", "ridge") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == "" and found["releasable"] is False and found["records"] == 600
    rows = {row["method"]: row for row in found["rows"]}
    assert rows["probe"]["epsilon"] is None and rows["probe"]["accuracy"]["mean"] > 0.9
    for method in ("lda", "ridge"):
        assert 0.0999 < rows[method]["epsilon"] <= 0.1 and rows[method]["delta"] == 1e-5
        assert rows[method]["accountant"] == "analytic Gaussian"
        assert len(set(rows[method]["accuracy"]["runs"])) == 2, "seeds differ"

    assert command(*shared, "--methods", "lda", "--features", "4", "raw") == 0
    out, err = capsys.readouterr()
    assert "±" in out and "one-shot DP-LDA" in out and "protects nobody" in out
    assert "tiny, 4 whitened" in out and "tiny, 6 raw" in out and "public data stripes" in out
    assert "features of the private records" in err
    assert command(*shared, "--methods", "lda", "--quiet", "--records", "30", "--epsilon", "inf") == 0
    out, err = capsys.readouterr()
    assert err == "" and "30 records" in out and "∞" in out and "no protection" in out


def test_several_backbones_in_one_table(small_world: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = save(tmp_path / "other", tiny_network("wrn"))
    assert command("--backbone", small_world, other, "--methods", "ridge", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["on"].split(",")[0] for row in rows] == ["tiny", "tiny", "other", "other"]


def test_an_epsilon_is_rounded_up() -> None:
    assert baselines._up(0.99991) == "1.0000" and baselines._up(1.0) == "1.0000" and baselines._up(0.30001) == "0.3001"


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, dpdd.scenarios.baselines; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--epsilon", "0"], "above 0"),
        (["--epsilon", "40"], "up to 32"),
        (["--epsilon", "nan"], "above 0"),
        (["--delta", "1"], "up to 0.01"),
        (["--seeds", "0"], "from 1 up"),
        (["--minutes", "-1"], "above 0"),
        (["--methods", "magic"], "invalid choice"),
        (["--features", "many"], "features are 'raw', or a number"),
        (["--records", "some"], "whole number"),
        (["--backbone", "no-such"], "no backbone"),
        (["--settings", "no-such.json"], "no JSON file of settings"),
        (["--dataset", "mnist", "--tune-on", "mnist"], "would leak it"),
    ],
)
def test_bad_values_get_one_sentence(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = command(*arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert code in (2, 3) and out == "" and complaint in err and "Traceback" not in err


def test_images_of_another_kind_are_refused(small_world: str) -> None:
    with pytest.raises(ConfigError, match="1 channels, but backbone rgb32 was made for 3"):
        prepare(backbones.load("rgb32"), stripes(3, 0), stripes(3, 1))


def test_rows_are_plain_values(task: Task) -> None:
    rows: list[Row] = run([("lda", task)], [Budget(1.0, 1e-5)], 1)
    assert json.loads(json.dumps(rows[0].as_json()))["settings"] == {"strength": 0.1}
