"""`[data]`: a benchmark or a public schema, where public records are, and what is said of a section that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdd.common.config import validate
from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.errors import ConfigError, DataError
from dpdd.server.run.data_section import DataSection
from dpdd.server.run.origin import keep_origin, origin_of
from dpdd.server.run.own_data import set_aside, silo_records
from dpdd.server.run.requests import make_request
from dpdd.server.run.scenario import Scenario, load_scenario
from tests.common.own_files import CLASSES, striped, write_folder, write_npz

OWN: dict[str, Any] = {"classes": CLASSES, "shape": [1, 12, 12]}
TABLE: dict[str, Any] = {
    "kind": "table",
    "label": "sick",
    "columns": [
        {"name": "age", "type": "numeric", "low": 0, "high": 100},
        {"name": "sick", "type": "categorical", "categories": ["no", "yes"]},
    ],
}


def scenario(**data: Any) -> Scenario:
    return Scenario.model_validate({"name": "own", "data": data, "method": {"name": "dp-merf"}})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "name a benchmark as dataset, or declare own data: classes and shape"),
        ({"classes": CLASSES}, "own data needs shape"),
        ({"test": "x.npz", "shape": [1, 8, 8]}, "own data needs classes"),
        ({"dataset": "mnist", "classes": CLASSES}, "'mnist' brings classes.*leave classes out, or dataset"),
        ({"dataset": "mnist", "test": "x.npz"}, "test data of its own: leave test out"),
        ({"dataset": "mnist", "source": "x.npz"}, "leave source out"),
        ({"dataset": "mnist", "test_share": 0.2}, "leave test_share out"),
        ({**OWN, "shape": [14]}, r'a table needs kind = "table", label.*\[channels, height, width\]'),
        ({**OWN, "kind": "table"}, r'a table \(kind = "table"\) needs label'),
        ({**OWN, **TABLE}, "classes follows from a table's columns: leave it out"),
        ({**TABLE, "label": "height"}, "label must name one of the columns"),
        ({**TABLE, "columns": [{"name": "age", "type": "numeric", "low": 0}]}, "columns.0.numeric.high: this key"),
        ({**TABLE, "fit": "crop", "test": "x.csv"}, "fit is for images"),
        ({**TABLE, "test": {"path": "x.csv", "label_column": "sick"}}, "label_column is for images"),
        ({**TABLE, "test": "x.npz"}, "format 'npz' holds no columns"),
        ({**OWN, "shape": [14], "kind": "image"}, r"kind = 'image', but shape = \[14\].*kind 'table'"),
        ({**OWN, "kind": "sound"}, "data.kind|kind"),
        ({**OWN, "shape": [2, 8, 8]}, "shape must begin with 1 channel"),
        ({**OWN, "shape": [1, 8, True]}, "shape.2"),
        ({**OWN, "classes": ["one"]}, "at least two classes"),
        ({**OWN, "value_range": [1, 0]}, "smaller one first"),
        ({**OWN, "fit": "squeeze"}, "fit: .*'exact'"),
        ({**OWN, "test": "x.idx"}, r"test: the ending of 'x\.idx' says no format.*pair of IDX files"),
        ({**OWN, "test": {"format": "npz"}}, r"test\.path: this key is missing"),
        ({**OWN, "test": {"path": "x.npz", "label_column": "y"}}, "label_column is for format 'csv' or 'parquet'"),
        ({**OWN, "test": {"path": "x.npz", "classes": ["a", "b"]}}, r"test\.classes: there is no such key"),
        ({**OWN, "test": 7}, "test: "),
        ({**OWN, "shape": [3, 8, 8], "source": {"path": "x", "labels": "y"}}, "source: format 'idx' holds grey images"),
        ({**OWN, "test": "x.npz", "source": "y.npz", "test_share": 0.1}, "leave test_share"),
        ({**OWN, "test_share": 1.0}, "test_share"),
        ({**OWN, "partition": "group"}, 'partition = "group" needs a source that names groups'),
        ({**OWN, "partition": "group", "source": "x.npz"}, r"groups_key \(npz\)"),
        ({"dataset": "mnist", "partition": "group"}, "needs a source that names groups"),
    ],
)
def test_what_cannot_be_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        validate(values, DataSection, "my.toml")
    assert "\n" not in str(error.value)


def test_the_format_follows_from_the_ending() -> None:
    endings = {"a/x.npz": "npz", "x.csv": "csv", "x.Parquet": "parquet", "scans/": "image-folder"}
    for path, form in endings.items():
        section = DataSection.model_validate({**OWN, "test": path})
        assert section.test is not None and section.test.format == form
    pair = DataSection.model_validate({**OWN, "test": {"path": "x-ubyte", "labels": "y-ubyte"}}).test
    assert pair is not None and pair.format == "idx"


def test_a_benchmark_is_a_shorthand_for_its_schema_and_test_data() -> None:
    named, test = scenario(dataset="fashion-slice"), benchmarks.load("fashion-slice", "test")
    assert (named.schema.classes, named.schema.shape) == (test.classes, test.shape)
    read = named.test_data()
    assert read is not None and read is named.test_data(), "it is read once"
    np.testing.assert_array_equal(read.images, test.images)
    declared = scenario(classes=test.classes, shape=test.shape)
    assert make_request(declared).encode() == make_request(named).encode(), "silos are asked the same, byte for byte"
    assert declared.test_data() is None


def test_a_copy_with_other_data_reads_other_data() -> None:
    named = scenario(dataset="fashion-slice")
    assert named.test_data() is not None
    other = named.model_copy(update={"data": scenario(**OWN).data})
    assert other.test_data() is None and other.schema.classes == CLASSES


def scenario_file(folder: Path, data: str) -> Path:
    folder.mkdir(exist_ok=True)
    text = f'name = "own"\n[data]\nclasses = {list(CLASSES)}\nshape = [1, 12, 12]\n{data}\n[method]\nname = "dp-merf"\n'
    (folder / "study.toml").write_text(text)
    return folder / "study.toml"


def test_paths_are_relative_to_the_file_and_stay_so_in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = striped(9, patients=3)
    path = scenario_file(tmp_path / "study", 'test = "scans/test.npz"\nsource = "scans/all"')
    (path.parent / "scans").mkdir()
    write_npz(path.parent / "scans" / "test.npz", written, names=True)
    write_folder(path.parent / "scans" / "all", written)
    monkeypatch.chdir(path.parent)
    here = load_scenario("study.toml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    copy, second = tmp_path / "run" / "scenario.toml", tmp_path / "second.toml"
    for original, made in ((path, copy), (copy, second)):
        keep_origin(original, made, needed=True)
        made.write_bytes(original.read_bytes())
    keep_origin(copy, copy, needed=True)
    for loaded in (
        here,
        load_scenario("study/study.toml"),
        load_scenario("run/scenario.toml"),
        load_scenario("second.toml"),
    ):
        test = loaded.test_data()
        assert test is not None
        np.testing.assert_array_equal(test.images, written.features)
        np.testing.assert_array_equal(test.labels, written.labels)
        assert len(silo_records(loaded.data, 0)[0]) == 9
    keep_origin(path, copy, needed=False)
    assert origin_of(copy).folder == copy.parent and not list(copy.parent.glob("*.json"))
    copy.with_suffix(".origin.json").write_text('{"folder": 7}')
    with pytest.raises(ConfigError, match=r"scenario\.origin\.json: folder"):
        load_scenario(str(copy))


def test_a_source_on_the_command_line_takes_the_place_of_the_files(tmp_path: Path) -> None:
    path = scenario_file(
        tmp_path / "study", 'source = { path = "x.npz", groups_key = "patients" }\npartition = "group"'
    )
    kept = load_scenario(str(path), Path("other.npz")).data.source
    assert kept is not None and kept.groups_key == "patients" and kept.path == Path("other.npz").absolute()
    with pytest.raises(ConfigError, match=r"--source: .*names groups"):
        load_scenario(str(path), Path("folder"))
    with pytest.raises(ConfigError, match=r"--source: the ending of 'x\.gz' says no format"):
        load_scenario(str(path), Path("x.gz"))
    with pytest.raises(ConfigError, match=r"--source: .*brings classes.*leave source out"):
        load_scenario("quickstart", Path("x.npz"))


def test_test_data_are_rounded_to_8_bits_and_errors_name_the_key(tmp_path: Path) -> None:
    images = np.linspace(-1.0, 1.0, 3 * 144).reshape(3, 12, 12)
    np.savez(tmp_path / "x.npz", images=images, labels=np.array(["rows", "flat", "columns"]))
    named = {**OWN, "value_range": [-1.0, 1.0], "test": str(tmp_path / "x.npz")}
    test = scenario(**named).test_data()
    assert test is not None and test.labels.tolist() == [1, 0, 2]
    np.testing.assert_array_equal(test.images[:, 0], np.rint(255 * (images.astype(np.float64) + 1) / 2))
    for change, sentence in (
        ({"test": str(tmp_path / "y.npz")}, r"^data\.test: .*y\.npz"),
        ({"classes": ("flat", "rows")}, r"^data\.test: .*the label of record 3 is none of the 2 classes"),
        ({"shape": [1, 12, 13]}, r"^data\.test: .*has shape \(3, 12, 12\), but"),
        ({"value_range": [0.0, 1.0]}, r"^data\.test: .*outside value_range"),
    ):
        with pytest.raises(DataError, match=sentence):
            scenario(**{**named, **change}).test_data()
    np.savez(tmp_path / "x.npz", images=images[:0], labels=np.zeros(0, int))
    with pytest.raises(DataError, match="no test records"):
        scenario(**named).test_data()


def test_a_folder_of_8_bit_images_serves_where_silos_have_other_ranges(tmp_path: Path) -> None:
    write_folder(tmp_path / "png", striped(6, patients=2))
    source = {"path": str(tmp_path / "png"), "value_range": [0.0, 255.0]}
    test = scenario(**OWN, value_range=[0.0, 1.0], test=source).test_data()
    assert test is not None and len(test) == 6
    with pytest.raises(DataError, match=r"^data\.test: .*outside value_range \(0, 1\)"):
        scenario(**OWN, value_range=[0.0, 1.0], test=str(tmp_path / "png")).test_data()


@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=60),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_a_test_share_is_whole_groups_and_near_the_share(
    owners: list[int], share: float, seed: int, grouped: bool
) -> None:
    groups = np.array(owners)
    if len(set(owners)) < 2:
        grouped = False
    count = len(owners)
    records = LabelledRecords(np.zeros((count, 1)), np.zeros(count, np.int64), groups if grouped else None)
    aside = set_aside(records, share, seed)
    np.testing.assert_array_equal(aside, set_aside(records, share, seed))
    assert 0 < aside.sum() < count, "both parts have records"
    largest = 1
    if grouped:
        assert not set(groups[aside]) & set(groups[~aside])
        largest = int(np.bincount(groups).max())
    # the nearest prefix misses by half a group at most, unless the first or the last group had to be left out of it
    assert abs(aside.sum() - share * count) <= largest


def test_silos_and_test_share_are_disjoint_and_complete(tmp_path: Path) -> None:
    written = striped(60, patients=12)
    source = {"path": str(write_npz(tmp_path / "x.npz", written)), "groups_key": "patients"}
    split = scenario(**OWN, source=source, test_share=0.25)
    test, (whole, held) = split.test_data(), silo_records(split.data, split.seed)
    assert test is not None and len(test) + len(held) == 60 and whole.groups is not None
    pixels = {image.tobytes() for image in test.images}
    assert not pixels & {image.tobytes() for image in whole.features[held]} and len(pixels) == len(test)
    other = split.model_copy(update={"seed": 1}).test_data()
    assert other is not None and {image.tobytes() for image in other.images} != pixels
    with pytest.raises(ConfigError, match=r"data\.source.*--source"):
        silo_records(scenario(**OWN).data, 0)
    one = LabelledRecords(written.features, written.labels, np.zeros(60, int))
    with pytest.raises(ConfigError, match=r"data\.test_share: a source of 1 group\(s\)"):
        set_aside(one, 0.2, 0)


def test_the_scenarios_in_the_documentation_are_valid(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "coordinator.md"
    blocks = [block.partition("```")[0] for block in page.read_text().split("```toml\n")[1:]]
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.toml").write_text(block)
        load_scenario(str(tmp_path / f"{number}.toml"))
