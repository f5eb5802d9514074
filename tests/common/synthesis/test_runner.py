"""Batches over processes, kept on disk: the same images whoever makes them, and after any interruption."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.sps.feature_statistics import CLASS_SUMS, COUNT, SECOND_MOMENT
from dpdd.common.methods.sps.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.sps.specification import specification
from dpdd.common.methods.sps.synthesis import ImageTask, synthesise
from dpdd.common.methods.sps.targets import membership, mismatch
from dpdd.common.models.backbone import Provenance, build, load, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.synthesis import runner
from dpdd.common.synthesis.image_pyramid import ImagePyramid
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import MixedPrecision, SynthesisRunner, moved
from dpdd.common.synthesis.statistics import Statistics

CLASSES, SHAPE = ("left", "right"), (1, 12, 12)
RUN = RunDescription(CLASSES, SHAPE, 1)
FAST = SynthesisSettings(steps=6, batch_per_class=4, redraws=0)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("backbone") / "tiny"
    network = build(ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(8, 12), pool_after=(1,)))
    save(path, network, Provenance(public_data="none", licence="none", accuracy=0.0, command="test", seed=1))
    return str(path)


@pytest.fixture(scope="module")
def method(backbone: str) -> MethodSettings:
    return MethodSettings(backbone=backbone, features=8, picture=4, class_layers=1, class_dimensions=4)


@pytest.fixture(scope="module")
def statistics(method: MethodSettings) -> list[Statistics]:
    return [statistics_of(method)]


def statistics_of(method: MethodSettings) -> Statistics:
    """Noise-free sums over images that are light on the left or on the right."""
    spec = specification(method, RUN, 0)
    labels = torch.arange(80) % 2
    images = 0.2 * torch.rand(80, *SHAPE, generator=torch.Generator().manual_seed(2))
    images[labels == 0, :, :, :6] += 0.7
    images[labels == 1, :, :, 6:] += 0.5
    with torch.inference_mode():
        vectors, embeddings = spec.measure(images)
    assert embeddings is not None
    one_hot = torch.nn.functional.one_hot(labels).double()
    sums: dict[str, torch.Tensor] = {
        CLASS_SUMS: one_hot.T @ embeddings.double() * spec.weights[CLASS_SUMS],
        SECOND_MOMENT: (embeddings.double().T @ embeddings.double()).reshape(1, -1) * spec.weights[SECOND_MOMENT],
        COUNT: one_hot.sum(0)[:, None] * spec.weights[COUNT],
    }
    for statistic in spec.statistics:
        sums[statistic.name] = (
            membership(statistic, spec).double() @ one_hot.T @ vectors[:, spec.columns[statistic.name]].double()
        )
    return Statistics({name: value.numpy() for name, value in sums.items()}, 0.0, 1)


def make(
    statistics: list[Statistics],
    method: MethodSettings,
    settings: SynthesisSettings = FAST,
    images_per_class: int = 10,
    seed: int = 1,
    **options: object,
) -> LabelledSet:
    run = replace(RUN, images_per_class=images_per_class, public_seed=seed, **options)  # type: ignore[arg-type]
    return synthesise(statistics, method, settings, run)


def same(one: LabelledSet, other: LabelledSet) -> bool:
    assert one.soft is not None and other.soft is not None
    return one.images.tobytes() == other.images.tobytes() and one.soft.tobytes() == other.soft.tobytes()


def batches_in(folder: Path) -> dict[str, int]:
    """Kept batches, and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.glob("*/batch-*.safetensors"))}


def test_workers_make_no_difference(statistics: list[Statistics], method: MethodSettings, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    one = make(statistics, method)
    two = make(
        statistics,
        method,
        runner=SynthesisRunner(tmp_path, "cpu", workers=2),
        progress=lambda *what: seen.append(what),  # type: ignore[arg-type]
    )
    assert same(one, two)
    assert (one.images[:4] != one.images[4:8]).any((1, 2, 3)).all()  # each batch is another
    assert len(batches_in(tmp_path)) == 3  # two workers, one of them came twice
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1] == ("synthesising images", 18, 18)


def test_without_a_folder_nothing_is_written_and_one_thread_works(
    statistics: list[Statistics], method: MethodSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    threads: set[int] = set()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        make(statistics, method, images_per_class=2, progress=lambda *_: threads.add(torch.get_num_threads()))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert list(tmp_path.iterdir()) == [] and threads == {1}  # more would add up in another order


def test_one_image_per_class(statistics: list[Statistics], method: MethodSettings, tmp_path: Path) -> None:
    made = make(statistics, method, images_per_class=1, runner=SynthesisRunner(tmp_path))
    assert made.images.shape == (2, *SHAPE) and made.labels.tolist() == [0, 1]
    (batch,) = (load_file(path)["images"] for path in tmp_path.glob("*/batch-*"))
    assert len(batch) == 4 and (made.images == batch[::2]).all()  # one alone has no covariance


def test_a_longer_run_starts_with_the_shorter_one_s_batches(
    statistics: list[Statistics], method: MethodSettings, tmp_path: Path
) -> None:
    make(statistics, method, images_per_class=4, runner=SynthesisRunner(tmp_path))
    before = batches_in(tmp_path)
    more = make(statistics, method, images_per_class=8, runner=SynthesisRunner(tmp_path))
    after = batches_in(tmp_path)
    assert len(before) == 1 and len(after) == 2 and before.items() <= after.items()
    assert same(more, make(statistics, method, images_per_class=8))


def test_the_preview_shows_the_finished_images(
    statistics: list[Statistics], method: MethodSettings, tmp_path: Path
) -> None:
    made = make(statistics, method, images_per_class=12, runner=SynthesisRunner(tmp_path))
    (path,) = tmp_path.glob("*/preview.png")
    with Image.open(path) as preview:
        assert preview.tobytes() == made.preview().tobytes()


def test_a_running_batch_is_shown_too(
    statistics: list[Statistics], method: MethodSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PREVIEW_SECONDS", 0.0)
    looks = []

    def look(_what: str, done: int, _of: int) -> None:
        (path,) = tmp_path.glob("*/preview.png")
        looks.append((done, path.read_bytes(), len(batches_in(tmp_path))))

    made = make(statistics, method, images_per_class=4, runner=SynthesisRunner(tmp_path), progress=look)
    assert [done for done, _, _ in looks] == [1, 2, 3, 4, 5, 6]
    assert len({png for _, png, _ in looks}) == 6 and [kept for _, _, kept in looks] == [0] * 5 + [1]
    assert same(made, make(statistics, method, images_per_class=4))


def _changes(statistics: list[Statistics], method: MethodSettings) -> Mapping[str, dict[str, object]]:
    (stage,) = statistics
    nudged = {name: array.copy() for name, array in stage.sums.items()}
    nudged[CLASS_SUMS][1, 3] += 1e-6
    return {
        "steps": {"settings": FAST.model_copy(update={"steps": 7})},
        "a weight": {"settings": FAST.model_copy(update={"smoothness": 0.03})},
        "ema": {"settings": FAST.model_copy(update={"ema": 0.5})},
        "batch": {"settings": FAST.model_copy(update={"batch_per_class": 5})},
        "seed": {"seed": 2},
        "one number": {"statistics": [replace(stage, sums=nudged)]},
        "noise": {"statistics": [replace(stage, noise=0.01)]},
        "a stage's input": {"statistics": [replace(stage, stage_input={"teacher": np.zeros(3)})]},
    }


def test_what_decides_a_batch_decides_its_fingerprint(
    statistics: list[Statistics], method: MethodSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def task(settings: SynthesisSettings = FAST, seed: int = 1, **change: list[Statistics]) -> ImageTask:
        given = change.get("statistics", statistics)
        return ImageTask(given, method, settings, replace(RUN, public_seed=seed), settings.batch_per_class)

    found = {"nothing": task().fingerprint("cpu"), "device": task().fingerprint("cuda")}
    found |= {name: task(**change).fingerprint("cpu") for name, change in _changes(statistics, method).items()}  # type: ignore[arg-type]
    monkeypatch.setattr(runner, "code_behind", lambda _module: "other code")
    found["code"] = task().fingerprint("cpu")
    assert len(set(found.values())) == len(found), found
    monkeypatch.undo()
    again = task(settings=FAST.model_copy(update={"soft_labels": False, "redraws": 3}))
    assert pickle.loads(pickle.dumps(again)).fingerprint("cpu") == found["nothing"]


def test_changed_settings_do_not_take_old_batches(
    statistics: list[Statistics], method: MethodSettings, tmp_path: Path
) -> None:
    make(statistics, method, images_per_class=4, runner=SynthesisRunner(tmp_path))
    changed = FAST.model_copy(update={"learning_rate": 0.05})
    made = make(statistics, method, changed, images_per_class=4, runner=SynthesisRunner(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    assert same(made, make(statistics, method, changed, images_per_class=4))


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other"])
def test_a_damaged_batch_is_made_again(
    statistics: list[Statistics], method: MethodSettings, tmp_path: Path, damage: str
) -> None:
    whole = make(statistics, method, images_per_class=8, runner=SynthesisRunner(tmp_path))
    first, second = sorted(tmp_path.glob("*/batch-*.safetensors"))
    data, untouched = first.read_bytes(), second.stat().st_mtime_ns
    if damage == "other":
        save_file({"images": load_file(first)["images"][:2]}, first)
    else:
        flipped = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        first.write_bytes({"empty": b"", "cut": data[:-1], "flipped": flipped}[damage])
    assert same(make(statistics, method, images_per_class=8, runner=SynthesisRunner(tmp_path)), whole)
    assert first.read_bytes() == data and second.stat().st_mtime_ns == untouched


SLOWLY = """
import pickle, sys, time
from pathlib import Path
from dataclasses import replace
from dpdd.common.methods.sps.synthesis import synthesise
from dpdd.common.synthesis.runner import SynthesisRunner

def slowly(what, done, of):
    if done == 16:
        print("two batches and a bit", flush=True)
        time.sleep(600)

if __name__ == "__main__":
    statistics, method, settings, run = pickle.loads(Path(sys.argv[1]).read_bytes())
    runner = SynthesisRunner(Path(sys.argv[2]), workers=2)
    synthesise(statistics, method, settings, replace(run, runner=runner, progress=slowly))
"""


def test_a_killed_run_goes_on_where_it_was(
    statistics: list[Statistics], method: MethodSettings, tmp_path: Path
) -> None:
    arguments = (statistics, method, FAST, replace(RUN, images_per_class=14))
    (tmp_path / "arguments").write_bytes(pickle.dumps(arguments))
    (tmp_path / "slowly.py").write_text(SLOWLY)
    command = [sys.executable, "slowly.py", "arguments", "kept"]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert run.stdout is not None and run.stdout.readline() == b"two batches and a bit\n"
        run.kill()
        run.communicate(timeout=60)  # until nobody can write there: its workers notice that it is gone
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    before = batches_in(tmp_path / "kept")
    assert 1 <= len(before) < 4
    resumed = make(statistics, method, images_per_class=14, runner=SynthesisRunner(tmp_path / "kept"))
    after = batches_in(tmp_path / "kept")
    assert len(after) == 4 and before.items() <= after.items()
    assert same(resumed, make(statistics, method, images_per_class=14))


class Doomed(ImageTask):
    """A task that kills whoever makes its second batch."""

    def make(self, number: int, device: torch.device) -> Iterator[ImagePyramid]:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().make(number, device)


def test_a_worker_that_dies_is_told_of(statistics: list[Statistics], method: MethodSettings) -> None:
    task = Doomed(statistics, method, FAST, RUN, 4)
    with pytest.raises(DpddError, match="exit code -9"):
        SynthesisRunner(workers=2).make(task, range(2))


def test_off_class_images_are_drawn_again(statistics: list[Statistics], method: MethodSettings, tmp_path: Path) -> None:
    poor = FAST.model_copy(update={"steps": 1, "learning_rate": 0.5, "teacher_weight": 0.0})
    said: set[str] = set()
    before = make(statistics, method, poor, images_per_class=40)
    after = make(
        statistics,
        method,
        poor.model_copy(update={"redraws": 3}),
        images_per_class=40,
        runner=SynthesisRunner(tmp_path),
        progress=lambda what, _done, _of: said.add(what),
    )
    assert before.soft is not None and after.soft is not None and after.teacher is not None
    off, still = (made.soft.argmax(1) != made.labels for made in (before, after))
    assert 0 < still.sum() < off.sum() or (not still.any() and off.any())
    assert f"redrawing {off.sum()} off-class images" in said
    kept = ~off
    assert (after.images[kept] == before.images[kept]).all()
    changed = (after.images != before.images).any((1, 2, 3))
    assert not still[changed].any() and changed.sum() == off.sum() - still.sum()
    anew = after.teacher.probabilities(torch.from_numpy(after.images).float() / 255.0).numpy()
    np.testing.assert_allclose(after.soft, anew, atol=1e-5)
    (path,) = tmp_path.glob("*/preview.png")
    with Image.open(path) as preview:
        assert preview.tobytes() == before.preview().tobytes()


def test_a_class_lost_in_noise_is_not_drawn_again(statistics: list[Statistics], method: MethodSettings) -> None:
    (stage,) = statistics
    sums = {name: array.copy() for name, array in stage.sums.items()}
    sums[COUNT][:] = 0.0
    said: set[str] = set()
    poor = FAST.model_copy(update={"steps": 1, "teacher_weight": 0.0, "redraws": 1})
    lost = [replace(stage, sums=sums, noise=1.0)]
    made = make(lost, method, poor, progress=lambda what, _done, _of: said.add(what))
    assert made.soft is not None and (made.soft.argmax(1) != made.labels).any()
    assert said == {"synthesising images"}


def test_averaging_over_steps_changes_values_and_not_the_first_gradient(
    statistics: list[Statistics], method: MethodSettings
) -> None:
    def pixels(steps: int, ema: float) -> bytes:
        others = {"embedding_weight": 0.0, "picture_weight": 0.0, "teacher_weight": 0.0, "smoothness": 0.0}
        settings = FAST.model_copy(update={**others, "steps": steps, "ema": ema})
        return make(statistics, method, settings, images_per_class=4).images.tobytes()

    assert pixels(1, 0.9) == pixels(1, 0.0)
    assert pixels(6, 0.9) != pixels(6, 0.0)


def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="auto, cpu or cuda"):
        SynthesisRunner(device="tpu")
    with pytest.raises(ConfigError, match="at least 1"):
        SynthesisRunner(workers=0)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no GPU"):
            SynthesisRunner(device="cuda")
        assert SynthesisRunner(device="auto").kind == "cpu"
        assert SynthesisRunner(workers=None).places(1000) == ["cpu"] * (os.cpu_count() or 1)


def test_one_process_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert SynthesisRunner(workers=None).places(8) == ["cuda:0", "cuda:1", "cuda:2"]
    assert SynthesisRunner(workers=None).places(2) == ["cuda:0", "cuda:1"]
    assert SynthesisRunner(workers=1).places(8) == ["cuda:0"]
    assert SynthesisRunner(device="cpu", workers=2).places(8) == ["cpu", "cpu"]


def test_what_is_moved_is_a_copy_that_measures_alike(statistics: list[Statistics], method: MethodSettings) -> None:
    task = ImageTask(statistics, method, FAST, RUN, 4)
    looks, moment_loss = task.goals
    (spec, wanted), ((there, goals),), like = looks[0], *moved((looks, moment_loss), torch.device("cpu"))
    assert (
        there.network is not spec.network and like is not moment_loss and like is not None and moment_loss is not None
    )
    images = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(5))
    vectors, embeddings = spec.measure(images)
    again, embeddings_again = there.measure(images)
    assert embeddings is not None and embeddings_again is not None
    assert torch.equal(vectors, again) and torch.equal(embeddings, embeddings_again)
    losses = [mismatch(vectors, task.labels, spec, goal, 10.0) for goal in (wanted, goals)]
    assert torch.equal(*losses)
    for one, other in zip(
        moment_loss.losses(embeddings, task.labels), like.losses(embeddings, task.labels), strict=True
    ):
        assert torch.equal(one, other)


def test_mixed_precision_gives_float32_near_the_network_s_own(backbone: str) -> None:
    network = load(backbone).network
    mixed = MixedPrecision(network, "cpu")
    images = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(6)).requires_grad_(True)
    layers_of: list[torch.Tensor] = []
    features, exact = mixed.features(images, layers_of.append), network.features(images)
    assert features.dtype == torch.float32 and {hook.dtype for hook in layers_of} == {torch.float32}
    assert mixed.features(images).dtype == torch.float32
    assert not torch.equal(features, exact)  # it is another precision
    torch.testing.assert_close(features, exact, atol=0.02 * float(exact.detach().abs().max()), rtol=0)
    features.square().sum().backward()
    assert images.grad is not None and images.grad.dtype == torch.float32 and bool(images.grad.isfinite().all())
