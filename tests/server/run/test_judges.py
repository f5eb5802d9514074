"""Who judges where a scenario names nobody."""

from __future__ import annotations

from pathlib import Path

from dpdd.common.models.choice import AUTO
from dpdd.server.evaluation.settings import EvaluationSection
from dpdd.server.run.judges import judging
from dpdd.server.run.scenario import load_scenario

KERNELS = ("convnet-dd", "convnet", "krr", "krr-features", "krr-ntk")


def scenario(folder: Path, method: str, more: str = "") -> EvaluationSection:
    path = folder / "scenario.toml"
    path.write_text(f'name = "x"\n[data]\ndataset = "fashion-slice"\n[method]\nname = "{method}"\n{more}')
    return load_scenario(str(path)).evaluation


def test_kernel_methods_are_judged_by_all_kernels_and_a_convnet(tmp_path: Path) -> None:
    assert scenario(tmp_path, "kip-moments").learners == KERNELS
    assert scenario(tmp_path, "kip-moments").backbone is None  # the method's own
    assert (scenario(tmp_path, "dp-kip").learners, scenario(tmp_path, "dp-kip").backbone) == (KERNELS, AUTO)
    also = '[[synthesis.also]]\nname = "kip"\nmethod = "kip-moments"\n'
    assert scenario(tmp_path, "sps", also).learners == KERNELS


def test_who_is_named_judges_alone_and_other_methods_name_nobody(tmp_path: Path) -> None:
    named = scenario(tmp_path, "kip-moments", '[evaluation]\nlearners = ["krr-ntk"]\n')
    assert (named.learners, named.backbone) == (("krr-ntk",), None)
    assert scenario(tmp_path, "sps").learners is None
    assert judging(EvaluationSection(backbone="gray28"), ["dp-kip"]).backbone == "gray28"


def test_beside_a_public_pool_somebody_learns_from_it() -> None:
    assert judging(EvaluationSection(), ["sps"], pool=True).learners == ("convnet-dd", "convnet", "convnet-pool")
    chosen = EvaluationSection(learners=("probe",))
    assert judging(chosen, ["sps"], pool=True) == chosen, "who names learners gets these"
