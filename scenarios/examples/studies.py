"""Three studies of images that are no benchmark. `write` makes a coordinator's scenario and three silos as their
operators would: a `silo.toml` each, and data in the form that it happens to have.

- `colour-folders`: 64x64 colour images in four classes, from folders of PNG and JPEG files of many sizes.
- `unequal-classes`: grey 28x28 images in two classes, seven to one, and no test data: a folder, an NPZ and a Parquet
  file, evaluated at the silos.
- `four-of-ten`: ten classes, of which each silo has four.

A fourth, `three-hospitals`, is of a table: `dpdd.scenarios.examples.hospitals`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from dpdd.common.errors import ConfigError
from dpdd.scenarios.examples import hospitals
from dpdd.scenarios.examples.drawings import FIGURES, draw

SILOS = ("north", "east", "south")

Labelled = Sequence[tuple[str, Image.Image]]
"""Class and picture of every record."""


@dataclass(frozen=True)
class Study:
    """What a study's scenario says beside its data, and who has how many of which figures in which form."""

    summary: str
    classes: Mapping[str, str]
    """Class: the figure that is drawn for it."""
    shape: tuple[int, int, int]
    records: Mapping[str, Mapping[str, int]]
    """For each silo, how many records of which class."""
    scenario: str
    forms: Mapping[str, str] = field(default_factory=dict)
    """For each silo, what its data is: folder (by default), npz or parquet."""
    sides: tuple[int, int] | None = None
    """The least and largest side of a picture; as declared, if left out."""
    tested: int = 0
    """How many test records of each class the coordinator has."""
    budget: float = 1.0
    more_data: str = ""
    methods: tuple[str, ...] = ("sps",)


_FOUR = {"benign": "disc", "cracked": "cross", "folded": "triangle", "torn": "stripes"}
_FITTED = 'fit = "crop"\n'
_TEN = dict(zip(FIGURES, FIGURES, strict=True))

_SPS = """
[method]
name = "sps"
[method.settings]
features = 96
stages = 2
first_share = 0.5

[synthesis]
images_per_class = 10
[synthesis.settings]
batch_per_class = 10
steps = 60
"""

_LEARNER = """
[evaluation]
width = 32
steps = 200
augmentations = 3000
[evaluation.convnet_dd]
runs = 1
width = 32
steps = 150
"""

STUDIES: Mapping[str, Study] = {
    "colour-folders": Study(
        summary="64x64 colour images in four classes, from folders of files of many sizes",
        classes=_FOUR,
        shape=(3, 64, 64),
        records={silo: dict.fromkeys(_FOUR, 150) for silo in SILOS},
        scenario=_SPS + _LEARNER,
        sides=(48, 120),
        tested=100,
        more_data=_FITTED,
    ),
    "unequal-classes": Study(
        summary="two classes, seven to one, without test data: evaluated at the silos",
        classes={"sound": "disc", "broken": "ring"},
        shape=(1, 28, 28),
        records={silo: {"sound": 1400, "broken": 200} for silo in SILOS},
        scenario=_SPS.replace("[synthesis]", '[synthesis]\npriors = "equal"', 1)
        + _LEARNER
        + """
[evaluation.at_silos]
epsilon = 1.0
delta = 1e-5
models = ["convnet", "teacher"]
""",
        forms={"east": "npz", "south": "parquet"},
        budget=1.8,
        methods=("sps", "evaluation"),
    ),
    "four-of-ten": Study(
        summary="ten classes, of which each silo has four",
        classes=_TEN,
        shape=(1, 28, 28),
        records={
            silo: dict.fromkeys([FIGURES[(3 * position + step) % 10] for step in range(4)], 300)
            for position, silo in enumerate(SILOS)
        },
        scenario=_SPS + _LEARNER,
        tested=60,
        forms=dict.fromkeys(SILOS, "npz"),
    ),
}


def write(name: str, folder: Path, *, share: float = 1.0) -> list[Path]:
    """Write the study into the new folder `folder`: `study.toml`, test data if it has some, and the silos' folders.

    With a smaller `share`, silos and test data have so many times fewer records. Returns the silos' folders.
    """
    if name not in STUDIES and name != hospitals.NAME:
        raise ConfigError(f"there is no example {name!r}; known are {', '.join(STUDIES)}, {hospitals.NAME}")
    if folder.exists():
        raise ConfigError(f"{folder} exists already; name a new folder")
    if name == hospitals.NAME:
        folder.mkdir(parents=True)
        return hospitals.write(folder, share)
    study, random = STUDIES[name], np.random.default_rng(20)
    folder.mkdir(parents=True)
    silos = []
    for silo in SILOS:
        counts = {label: max(1, round(share * count)) for label, count in study.records[silo].items()}
        home = folder / silo
        home.mkdir()
        form = study.forms.get(silo, "folder")
        source = _FORMS[form](home, _drawn(study, counts, random))
        (home / "silo.toml").write_text(_silo_file(silo, study, source))
        silos.append(home)
    test = ""
    if study.tested:
        _folder(folder, _drawn(study, dict.fromkeys(study.classes, round(share * study.tested)), random), "test")
        test = 'test = "test"\n'
    declared = f"classes = {json.dumps(list(study.classes))}\nshape = {list(study.shape)}\n{study.more_data}{test}"
    head = f'name = "{name}"\nsummary = "{study.summary}"\n\n[data]\n{declared}\n[privacy]\nepsilon = 1.0\n'
    (folder / "study.toml").write_text(f"{head}delta = 1e-5\n{study.scenario}")
    return silos


def _drawn(study: Study, counts: Mapping[str, int], random: np.random.Generator) -> list[tuple[str, Image.Image]]:
    low, high = study.sides or (study.shape[1], study.shape[1])
    return [
        (label, draw(study.classes[label], int(random.integers(low, high + 1)), study.shape[0] == 3, random))
        for label, count in counts.items()
        for _ in range(count)
    ]


def _folder(home: Path, records: Labelled, name: str = "images") -> str:
    """A sub-folder per class; every other file is a JPEG."""
    for number, (label, picture) in enumerate(records):
        (home / name / label).mkdir(parents=True, exist_ok=True)
        picture.save(home / name / label / f"{number:05d}{'.jpg' if number % 2 else '.png'}", quality=90)
    return f'format = "image-folder"\npath = "{name}"'


def _npz(home: Path, records: Labelled) -> str:
    images = np.stack([np.asarray(picture) for _, picture in records])
    np.savez(home / "scans.npz", images=images, labels=np.array([label for label, _ in records]))
    return 'format = "npz"\npath = "scans.npz"'


def _parquet(home: Path, records: Labelled) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def png(picture: Image.Image) -> bytes:
        with io.BytesIO() as buffer:
            picture.save(buffer, format="PNG")
            return buffer.getvalue()

    columns = {"scan": [png(picture) for _, picture in records], "finding": [label for label, _ in records]}
    pq.write_table(pa.table(columns), home / "scans.parquet", row_group_size=200)
    return 'format = "parquet"\npath = "scans.parquet"\nimage_column = "scan"\nlabel_column = "finding"'


_FORMS: Mapping[str, Callable[[Path, Labelled], str]] = {"folder": _folder, "npz": _npz, "parquet": _parquet}


def _silo_file(silo: str, study: Study, source: str) -> str:
    return f"""\
name = "{silo}"

[data]
{source}
classes = {json.dumps(list(study.classes))}
shape = {list(study.shape)}
{study.more_data}
[budget]
epsilon = {study.budget}
delta = 2e-5

[policy]
methods = {json.dumps(list(study.methods))}
epsilon_per_request = 1.0
approval = "auto"

[ledger]
anchor = "../{silo}.anchor"
"""
