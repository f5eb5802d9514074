"""Public datasets: where they are looked for, what the slice holds, what is said when they are missing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from dpdd.common.data import benchmarks, lazy_torchvision
from dpdd.common.errors import DataError
from dpdd.common.files import idx
from dpdd.scenarios.data import make_fashion_slice

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $DPDD_DATA, with no other dataset on the machine and no network."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("DPDD_DATA", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(benchmarks, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    monkeypatch.setattr(benchmarks, "load_torchvision", no_torchvision)
    return folder


@pytest.fixture
def full_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """$DPDD_DATA as it is, or the shared folder beside the repository."""
    shared = REPOSITORY.parent / "shared" / "data"
    if not os.environ.get("DPDD_DATA") and shared.is_dir():
        monkeypatch.setenv("DPDD_DATA", str(shared))
    # What a user's cache or Debian has is found by `available` too.


def need(name: str) -> None:
    if not benchmarks.available(name):
        pytest.skip(f"{name} is not on this machine; set DPDD_DATA to a folder that has it")


def no_torchvision() -> None:
    raise ImportError("no network\nin tests")


def fill(folder: Path, value: int, suffix: str = ".gz", labels: tuple[int, ...] = (0, 9)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem in ("train", "t10k"):
        images = np.full((len(labels), 28, 28), value, dtype=np.uint8)
        idx.write(folder / f"{stem}-images-idx3-ubyte{suffix}", images)
        idx.write(folder / f"{stem}-labels-idx1-ubyte{suffix}", np.array(labels, dtype=np.uint8))


def jpeg(width: int = 8, height: int = 8, shade: int = 100) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (shade, shade, shade)).save(out, "JPEG")
    return out.getvalue()


def jpeg_arrays(pictures: list[bytes], split: str = "train") -> dict[str, np.ndarray]:
    return {
        f"{split}_jpeg": np.frombuffer(b"".join(pictures), dtype=np.uint8),
        f"{split}_offsets": np.cumsum([0, *map(len, pictures)]),
        f"{split}_labels": np.zeros(len(pictures), dtype=np.int16),
        "classes": np.array(["cat", "dog"]),
    }


def refused(name: str, split: str, *fragments: str) -> str:
    with pytest.raises(DataError) as caught:
        benchmarks.load(name, split)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message, message
    return message


# The shipped slice


def test_the_slice_is_shipped_balanced_and_small() -> None:
    for split, per_class in make_fashion_slice.PER_CLASS.items():
        part = benchmarks.load("fashion-slice", split)
        assert part.shape == (1, 28, 28) and part.classes == benchmarks.FASHION_CLASSES
        assert np.bincount(part.labels).tolist() == [per_class] * 10
    folder = resources.files("dpdd.common.data")
    with resources.as_file(folder / "fashion-slice.npz") as path:
        assert path.stat().st_size < 11_500_000
    assert "Copyright (c) 2017 Zalando SE" in (folder / "FASHION-MNIST-LICENSE.txt").read_text()
    assert benchmarks.available("fashion-slice")


@pytest.mark.usefixtures("full_data")
def test_the_slice_is_cut_from_the_full_dataset() -> None:
    need("fashion-mnist")
    make_fashion_slice.check(make_fashion_slice.SLICE)


@pytest.mark.slow
@pytest.mark.usefixtures("full_data")
def test_the_slice_is_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    need("fashion-mnist")
    assert make_fashion_slice.main(["--output", str(tmp_path / "slice.npz")]) == 0
    assert (tmp_path / "slice.npz").read_bytes() == make_fashion_slice.SLICE.read_bytes()


def test_building_the_slice_is_deterministic_and_checked(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_fashion_slice, "PER_CLASS", {"train": 2, "test": 1})
    fill(data / "fashion-mnist", 7, labels=(0, 1, 0, 1, 1))
    one, two = tmp_path / "one.npz", tmp_path / "two.npz"
    assert make_fashion_slice.main(["--output", str(one)]) == make_fashion_slice.main(["--output", str(two)]) == 0
    assert one.read_bytes() == two.read_bytes()
    assert make_fashion_slice.main(["--output", str(one), "--check"]) == 0
    assert benchmarks.read_slice(one, "train").labels.tolist() == [0, 1, 0, 1]
    fill(data / "fashion-mnist", 8, labels=(0, 1, 0, 1, 1))
    assert make_fashion_slice.main(["--output", str(one), "--check"]) == DataError.exit_code
    assert "build it again" in capsys.readouterr().err
    monkeypatch.setattr(make_fashion_slice, "PER_CLASS", {"train": 3, "test": 1})
    assert make_fashion_slice.main(["--output", str(one)]) == DataError.exit_code
    assert "fewer than 3 images" in capsys.readouterr().err


# Where full datasets are looked for


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("name", "classes"), [("mnist", "0123456789"), ("fashion-mnist", None)])
def test_idx_datasets_from_the_data_folder(data: Path, suffix: str, name: str, classes: str | None) -> None:
    assert not benchmarks.available(name)
    fill(data / name, 5, suffix)
    assert benchmarks.available(name)
    for split in ("train", "test"):
        loaded = benchmarks.load(name, split)  # type: ignore[arg-type]
        assert loaded.labels.tolist() == [0, 9] and (loaded.images == 5).all() and loaded.shape == (1, 28, 28)
        assert loaded.classes == (tuple(classes) if classes else benchmarks.FASHION_CLASSES)


def test_the_order_of_places(data: Path) -> None:
    fill(data / "FashionMNIST" / "raw", 3, "")
    assert benchmarks.load("fashion-mnist", "train").images.max() == 3
    fill(benchmarks.DEBIAN_FASHION_MNIST, 2, "")
    assert benchmarks.load("fashion-mnist", "train").images.max() == 2
    fill(data / "fashion-mnist", 1)
    assert benchmarks.load("fashion-mnist", "train").images.max() == 1


def test_without_the_variable_the_cache_is_searched(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPDD_DATA")
    refused("mnist", "train", "$DPDD_DATA (not set)")
    fill(Path("~/.cache/dpdd").expanduser() / "MNIST" / "raw", 4, "")
    assert benchmarks.load("mnist", "test").images.max() == 4


def test_when_all_places_fail_the_message_names_them(data: Path) -> None:
    message = refused("fashion-mnist", "train", str(data / "fashion-mnist"), "debian", "torchvision", "no network")
    assert "dataset-fashion-mnist" in message and "set DPDD_DATA" in message
    refused("mnist", "train", str(data / "mnist"), "allow the download")
    refused("cifar10", "train", str(data / "cifar10-jpeg.npz"), "cifar-10-batches-py")
    refused("tinyimagenet32", "train", str(data / "tinyimagenet32-jpeg.npz"), "no download")


def test_a_half_filled_folder_is_pointed_out(data: Path) -> None:
    fill(data / "mnist", 1)
    (data / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert not benchmarks.available("mnist")
    assert len(benchmarks.load("mnist", "train")) == 2
    refused("mnist", "test", "its test files are not all there")


def test_a_damaged_file_is_not_passed_over(data: Path) -> None:
    fill(data / "mnist", 1)
    fill(data / "MNIST" / "raw", 2)
    path = data / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    refused("mnist", "train", str(path), "cut short")


def test_labels_that_do_not_fit(data: Path) -> None:
    fill(data / "mnist", 1, labels=(0, 10))
    refused("mnist", "train", "train-labels", "record 2", "0..9")
    fill(data / "mnist", 1)
    idx.write(data / "mnist" / "train-labels-idx1-ubyte.gz", np.zeros(3, dtype=np.uint8))
    refused("mnist", "train", "2 images", "3 labels")


def test_unknown_names_and_splits(data: Path) -> None:
    refused("imagenet\n", "train", "there is no dataset 'imagenet\\\\n'", "fashion-slice")
    refused("tinyimagenet32", "test", "has no split 'test'", "train")
    with pytest.raises(DataError):
        benchmarks.available("imagenet")


# JPEG archives


def test_jpeg_archives(data: Path) -> None:
    arrays = jpeg_arrays([jpeg(shade=10), jpeg(shade=200)])
    np.savez(data / "tinyimagenet32-jpeg.npz", **arrays)
    np.savez(data / "cifar10-jpeg.npz", **{**arrays, **jpeg_arrays([jpeg(shade=90)], "test")})
    loaded = benchmarks.load("tinyimagenet32", "train")
    assert loaded.shape == (3, 8, 8) and loaded.classes == ("cat", "dog")
    assert loaded.images[:, 0, 0, 0].tolist() == pytest.approx([10, 200], abs=2)
    assert len(benchmarks.load("cifar10", "test")) == 1
    assert benchmarks.available("cifar10") and benchmarks.available("tinyimagenet32")


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"train_jpeg": np.zeros(4)}, "one row of uint8"),
        ({"train_offsets": np.array([0, 1])}, "must be 3 integers"),
        ({"train_offsets": np.array([0, -5, 9])}, "must rise from 0"),
        ({"train_labels": np.array([0.0, 1.0])}, "one row of integers"),
        ({"train_labels": np.array([0, 2])}, "record 2 has a label outside 0..1"),
        ({"classes": np.array([1, 2])}, "one row of text"),
        (jpeg_arrays([jpeg(), jpeg(9, 8)]), "record 2 is 9 x 8 pixels, but the first is 8 x 8"),
        (jpeg_arrays([jpeg(), b"not a jpeg"]), "at record 2"),
        (jpeg_arrays([jpeg(), jpeg()[:-60]]), "at record 2"),
        ({**jpeg_arrays([]), "train_offsets": np.array([0])}, "holds no image"),
    ],
)
def test_malformed_jpeg_archives(data: Path, change: dict[str, np.ndarray], fragment: str) -> None:
    np.savez(data / "tinyimagenet32-jpeg.npz", **{**jpeg_arrays([jpeg(), jpeg()]), **change})
    refused("tinyimagenet32", "train", str(data / "tinyimagenet32-jpeg.npz"), fragment)


# torchvision


def test_the_download_is_the_last_resort(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(kind: str, data: np.ndarray):
        def construct(root: str, *, train: bool, download: bool) -> SimpleNamespace:
            calls.append((kind, root, train, download))
            return SimpleNamespace(data=data, targets=[1, 0], classes=["x", "y"])

        return construct

    fake = SimpleNamespace(
        datasets=SimpleNamespace(
            MNIST=download("MNIST", np.zeros((2, 28, 28), dtype=np.uint8)),
            CIFAR10=download("CIFAR10", np.zeros((2, 32, 32, 3), dtype=np.uint8)),
        )
    )
    monkeypatch.setattr(benchmarks, "load_torchvision", lambda: fake)
    assert benchmarks.load("mnist", "train").shape == (1, 28, 28)
    cifar = benchmarks.load("cifar10", "test")
    assert cifar.shape == (3, 32, 32) and cifar.labels.tolist() == [1, 0] and cifar.classes == ("x", "y")
    assert calls == [("MNIST", str(data), True, True), ("CIFAR10", str(data), False, True)]
    fill(data / "mnist", 1)
    benchmarks.load("mnist", "train")
    assert len(calls) == 2


def test_operators_are_declared_only_without_the_compiled_library(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = []
    monkeypatch.setattr(lazy_torchvision, "_declare_operators", lambda: declared.append(True))
    monkeypatch.setattr(lazy_torchvision.importlib, "import_module", lambda name: name)
    for loads in (True, False):
        monkeypatch.setattr(lazy_torchvision, "_compiled_library_loads", lambda folder, loads=loads: loads)
        assert lazy_torchvision.load_torchvision() == "torchvision"
        assert declared == ([] if loads else [True])


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_loading_from_disk_does_not_import_torch() -> None:
    code = (
        "import sys; from dpdd.common.data import benchmarks; benchmarks.load('fashion-slice', 'test');"
        "print([name for name in ('torch', 'torchvision') if name in sys.modules])"
    )
    assert run(code) == "[]"


def test_torchvision_imports_twice_whatever_build_it_is() -> None:
    code = (
        "from dpdd.common.data.lazy_torchvision import load_torchvision as load;"
        "print(load() is load(), load().datasets.MNIST.__name__)"
    )
    assert run(code) == "True MNIST"


# The real thing, where it is


@pytest.mark.usefixtures("full_data")
@pytest.mark.parametrize(
    ("name", "split", "count", "shape"),
    [
        ("mnist", "test", 10_000, (1, 28, 28)),
        ("mnist", "train", 60_000, (1, 28, 28)),
        ("fashion-mnist", "test", 10_000, (1, 28, 28)),
        ("cifar10", "test", 10_000, (3, 32, 32)),
        pytest.param("cifar10", "train", 50_000, (3, 32, 32), marks=pytest.mark.slow),
        pytest.param("tinyimagenet32", "train", 100_000, (3, 32, 32), marks=pytest.mark.slow),
    ],
)
def test_full_datasets(name: str, split: benchmarks.Split, count: int, shape: tuple[int, int, int]) -> None:
    need(name)
    loaded = benchmarks.load(name, split)
    assert len(loaded) == count and loaded.shape == shape
    assert len(np.unique(loaded.labels)) == len(loaded.classes)
