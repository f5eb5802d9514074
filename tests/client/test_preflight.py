"""`dpdd-client preflight`: what it will do with images, which methods can use them, and when a silo is not ready."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from PIL import Image

from dpdd.client import applicability
from dpdd.client.applicability import obstacles
from dpdd.client.cli import main
from dpdd.client.commands.setup import TEMPLATE, key_warnings
from dpdd.client.config import SiloSettings
from dpdd.client.silo import Silo
from dpdd.client.transport.channel import Files
from dpdd.common.data.formats import DataSpec
from dpdd.common.errors import ConfigError

CLASSES = ("benign", "malignant")


def silo(folder: Path, data: str, *, methods: str = '"dp-merf"', more: str = "", policy: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "silo.toml").write_text(
        f"""
name = "{folder.name}"
[data]
classes = ["benign", "malignant"]
{data}
[budget]
epsilon = 1.0
delta = 1e-5
[policy]
methods = [{methods}]
epsilon_per_request = 1.0
{policy}
{more}
"""
    )
    Silo.initialise(folder)
    return folder


def write_images(folder: Path, sizes: list[tuple[int, int]], low: int = 0, high: int = 256) -> None:
    generator = np.random.default_rng(0)
    for number, (width, height) in enumerate(sizes):
        path = folder / "images" / CLASSES[number % 2] / f"{number}.{'png' if number % 3 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(low, high, (height, width, 3), dtype=np.uint8)).save(path)


FOLDER = 'format = "image-folder"\npath = "images"\n'


def preflight(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> tuple[int, str, str]:
    code = main(["preflight", "--silo", str(folder), *options])
    out, err = capsys.readouterr()
    return code, out, err


def test_it_shows_what_it_does_with_five_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = silo(tmp_path / "ward", FOLDER + 'shape = [1, 16, 16]\nfit = "crop"')
    write_images(folder, [(20 + number, 40) for number in range(12)])
    code, out, _ = preflight(capsys, folder)
    shown = [line for line in out.splitlines() if "pixels" in line]
    assert code == 0 and len(shown) == 5 and out.endswith("\nready\n")
    assert all("mode RGB: made grey, scaled to 16 x" in line and "centre 16 x 16 cut out" in line for line in shown)
    assert "0.jpg: 20 x 40 pixels, JPEG" in out
    code, out, err = preflight(capsys, folder, "--json")
    facts = json.loads(out)
    assert code == 0 and err == "" and facts["ready"] and len(facts["examples"]) == 5
    assert facts["methods"] == {"dp-merf": None} and facts["records"] == 12


def test_it_stops_at_an_image_that_does_not_fit_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = silo(tmp_path / "ward", FOLDER + "shape = [1, 16, 16]")
    write_images(folder, [(16, 16), (16, 16), (17, 16)])
    code, out, err = preflight(capsys, folder)
    assert code == 4 and "ready" not in out and "2.png" in err and 'fit = "resize"' in err


@pytest.mark.parametrize(
    ("value_range", "noted"), [("[0, 65535]", True), ("[0, 255]", False), ("[0, 1000]", False), ("[0, 3000]", True)]
)
def test_it_warns_of_a_range_that_values_hardly_fill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value_range: str, noted: bool
) -> None:
    folder = silo(tmp_path / "ward", FOLDER + f"shape = [3, 16, 16]\nvalue_range = {value_range}")
    write_images(folder, [(16, 16)] * 4)
    code, out, _ = preflight(capsys, folder)
    assert code == 0 and ("of the declared range" in out) == noted
    assert out.endswith("ready, with the notes above\n" if noted else "ready\n")


def test_numbers_are_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = silo(tmp_path / "ward", 'format = "npz"\npath = "a.npz"\nshape = [1, 8, 8]\nfit = "pad"')
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 6, 3), dtype=np.uint8)
    np.savez(folder / "a.npz", images=images, labels=[0, 1, 1])
    code, out, _ = preflight(capsys, folder)
    assert code == 0 and "6 x 12 pixels, RGB, uint8: made grey, scaled to 4 x 8, filled up with zeros to 8 x 8" in out


TABLE = 'format = "csv"\npath = "t.csv"\nshape = [2]'


def test_a_table_that_no_method_takes_is_not_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = silo(tmp_path / "ward", TABLE, methods='"dp-merf", "sps"')
    (folder / "t.csv").write_text("label,a,b\nbenign,1,2\nmalignant,2,3\n")
    for options in ((), ("--json",)):
        code, out, err = preflight(capsys, folder, *options)
        assert code == 3 and "not ready" in err and "for records of kind image, not table" in out
        assert "not ready" in out or json.loads(out)["ready"] is False


def test_an_empty_list_of_methods_is_not_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = silo(tmp_path / "ward", FOLDER + "shape = [3, 16, 16]", methods="")
    write_images(folder, [(16, 16)] * 4)
    code, out, _ = preflight(capsys, folder)
    assert code == 3 and "policy.methods is empty" in out and out.endswith("not ready\n")


def why(tmp_path: Path, data: str, **more: Any) -> dict[str, str | None]:
    return obstacles(Silo(silo(tmp_path / "ward", data, **more)))


def test_methods_are_tried_on_the_declared_shape_without_any_record(tmp_path: Path) -> None:
    tried = why(tmp_path, FOLDER + "shape = [1, 2, 2]", methods='"dp-merf", "ndpdc", "dm"')
    assert tried["dp-merf"] is None
    assert "networks of depth" in str(tried["ndpdc"]) and "without privacy" in str(tried["dm"])
    with pytest.raises(ConfigError, match="is for images of shape"):
        applicability._try_backbones(("scatter28",), (1, 8, 8))
    assert why(tmp_path, FOLDER + "shape = [1, 28, 28]", methods='"sps"') == {"sps": None}


def test_methods_are_tried_as_the_policy_allows_them(tmp_path: Path) -> None:
    shape = FOLDER + "shape = [1, 8, 8]"
    assert why(tmp_path, shape, policy='kinds = ["distilled-set"]') == {"dp-merf": None}
    assert "policy.kinds" in str(why(tmp_path, shape, policy='kinds = ["gradient-round"]')["dp-merf"])
    simulation = "[simulation]\nallow_no_noise = true"
    assert why(tmp_path, shape, methods='"dm"', more=simulation) == {"dm": None}


def test_the_template_names_every_key_of_the_data(tmp_path: Path) -> None:
    """Each is there, alive or commented out, and every commented example is a valid value."""
    data = TEMPLATE.format(name="x", methods='"dp-merf"', neighbours="").split("[data]")[1].split("[budget]")[0]
    keys = {line.lstrip("# ").split(" = ")[0] for line in data.splitlines() if " = " in line}
    for_simulations = {"group_column", "groups_key", "group_pattern"}
    assert keys >= set(DataSpec.model_fields) - for_simulations
    chosen = {
        "idx": ("labels",),
        "npz": ("images_key", "labels_key"),
        "csv": ("label_column", "image_column"),
        "image-folder": ("fit", "value_range"),
    }
    tables = {
        "csv": ("kind", "label", "columns", "#", "separator", "encoding"),
        "parquet": ("kind", "label", "columns", "#"),
        "sql": ("kind", "label", "columns", "#", "url", "query", "password_env"),
    }
    for form, alive in tables.items():
        lines = [line for line in data.splitlines() if not line.startswith(("classes", "shape"))]
        starts = tuple("#   {" if key == "#" else f"# {key} =" for key in alive)
        values = tomllib.loads(
            "\n".join(line.removeprefix("# ") if line.startswith(starts) else line for line in lines)
        )
        own = {key: value for key, value in values.items() if key != "path" or form != "sql"}
        assert DataSpec.model_validate({**own, "format": form}).table is not None
    for form, alive in chosen.items():
        lines = [
            line.removeprefix("# ") if line.startswith(tuple(f"# {key} =" for key in alive)) else line
            for line in data.splitlines()
        ]
        values = tomllib.loads("\n".join(lines))
        assert set(alive) <= set(values)
        DataSpec(**{**values, "format": form})


def test_the_template_is_a_valid_silo(tmp_path: Path) -> None:
    SiloSettings.model_validate(tomllib.loads(TEMPLATE.format(name="x", methods='"sps"', neighbours="n")))


def write_certificate(path: Path, lifetime: timedelta) -> None:
    """A certificate as `join` leaves it, signed by itself."""
    key, name, now = Ed25519PrivateKey.generate(), x509.Name([]), datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = builder.not_valid_before(now - timedelta(days=400)).not_valid_after(now + lifetime).sign(key, None)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(signed.public_bytes(Encoding.PEM))


def test_what_ends_soon_or_is_open_to_others_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "north", [(28, 28)] * 12)
    home = silo(tmp_path / "north", FOLDER + "shape = [3, 28, 28]\n")
    certificate = Files(home).certificate
    write_certificate(certificate, timedelta(days=300))
    assert (home / "state").stat().st_mode & 0o777 == 0o700
    assert not [line for line in key_warnings(Silo(home)) if "certificate" in line or "open to" in line]
    write_certificate(certificate, timedelta(days=30, hours=1))
    (home / "state").chmod(0o755)
    code, out, err = preflight(capsys, home)
    assert code == 0, err
    assert "certificate of this silo expires in 30 days" in out + err
    assert "is open to other users" in out + err
