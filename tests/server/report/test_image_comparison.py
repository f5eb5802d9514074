"""Figures of images in a run: asked for by the scenario, in `metrics.json`, in the card, and on the screen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpdd.common.errors import ConfigError
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.report.image_comparison import KEY, compare_images, image_comparison_text
from dpdd.server.run.checks import check_before_asking
from dpdd.server.run.scenario import Scenario, load_scenario

SCENARIO = """
name = "compared"
[data]
dataset = "fashion-slice"
[method]
name = "dp-merf"
[evaluation]
{evaluation}
"""


def scenario(tmp_path: Path, evaluation: str) -> Scenario:
    (tmp_path / "compared.toml").write_text(SCENARIO.format(evaluation=evaluation))
    return load_scenario(str(tmp_path / "compared.toml"))


def some_images() -> LabelledSet:
    images = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (20, 1, 28, 28), dtype=np.uint8)
    return LabelledSet(images, np.arange(20) % 10, tuple("abcdefghij"))


def test_images_are_compared_where_a_scenario_names_a_feature_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdd.server.evaluation.image_fidelity.MOST_IMAGES", 30)
    asked = scenario(tmp_path, 'fidelity = "scatter28"')
    check_before_asking(asked)
    facts = compare_images(some_images(), asked)
    assert facts[KEY]["backbone"] == "scatter28" and facts[KEY]["real_images"] == 30 and facts[KEY]["images"] == 20
    text = image_comparison_text(facts)
    assert "features of scatter28" in text and "coverage" in text and "no part of the privacy claim" in text
    for without in ("", 'fidelity = "scatter28"\nruns = 0'):
        assert compare_images(some_images(), scenario(tmp_path, without)) == {}
    assert image_comparison_text({}) == ""


@pytest.mark.parametrize("name, complaint", [("no-such", "no backbone"), ("rgb32", "channels")])
def test_a_feature_space_that_does_not_fit_is_said_before_anybody_is_asked(
    tmp_path: Path, name: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_before_asking(scenario(tmp_path, f'fidelity = "{name}"'))


def test_tables_have_figures_of_their_own(tmp_path: Path) -> None:
    text = SCENARIO.replace("fashion-slice", "made-patients").replace("dp-merf", "sps-table")
    (tmp_path / "table.toml").write_text(text.format(evaluation='fidelity = "gray28"'))
    with pytest.raises(ConfigError, match="compared by their columns"):
        check_before_asking(load_scenario(str(tmp_path / "table.toml")))
