"""The contract of a method's public half: what does not keep it is an error where it is defined or registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import pytest
from pydantic import Field

from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, Method, RunDescription, check_complete
from dpdd.common.methods.registry import METHODS, method, register
from dpdd.common.privacy.clipping import Layout, class_segment
from dpdd.common.progress import silent
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.request import Kind


class OwnSettings(Settings):
    dimensions: Annotated[int, Field(ge=0)] = 3


class OwnSynthesis(Settings):
    steps: int = 1


class Plain(Method[OwnSettings, OwnSynthesis], family="plain"):
    """Keeps the contract, and no more."""

    def layout(self, settings: OwnSettings, run: RunDescription, stage: int) -> Layout:
        return Layout((class_segment("sums", self._width(settings), len(run.classes)),))

    def synthesise(
        self, statistics: Sequence[Statistics], settings: OwnSettings, synthesis: OwnSynthesis, run: RunDescription
    ) -> LabelledSet:
        raise NotImplementedError

    def _width(self, settings: OwnSettings) -> int:
        return settings.dimensions


def plain(name: str = "plain", preset: Mapping[str, Any] | None = None, **more: Any) -> Plain:
    return Plain(name, "test", "none", preset or {}, **more)


def test_a_method_that_keeps_the_contract_has_its_schemas_and_the_defaults() -> None:
    entry, run = plain(preset={"dimensions": 7}), RunDescription(("a", "b"), (1, 8, 8), 1)
    assert (entry.family, entry.settings_schema, entry.synthesis_schema) == ("plain", OwnSettings, OwnSynthesis)
    settings = entry.settings({})
    assert settings.dimensions == 7 and entry.settings({"dimensions": 2}).dimensions == 2
    assert entry.synthesis_settings({}).steps == 1
    assert entry.layout(settings, run, 0).segments[0].width == 7
    assert entry.resolve(settings, run, 1.0, 1e-5) is settings and entry.stages(settings) == 1
    assert entry.stage_input([], settings, run) == {} and entry.backbones(settings) == ()
    assert entry.count_weight(settings, 0) is None and entry.joint_teacher([], settings, [], run) is None
    entry.check_budget(0.1)
    with pytest.raises(ValueError, match="fit no classifier"):
        entry.teacher_of(None, settings, run)  # type: ignore[arg-type]
    assert register([entry, plain("other")]).keys() == {"plain", "other"}


def misspelt() -> None:
    class Crooked(Method[OwnSettings, OwnSynthesis], family="crooked"):
        def layuot(self, settings: OwnSettings, run: RunDescription, stage: int) -> Layout: ...  # type: ignore[empty-body]


def misspelt_in_a_subclass() -> None:
    class Crooked(Plain, family="crooked"):
        def stage_inputs(self, statistics: Any, settings: Any, run: Any) -> Any: ...


def invented() -> None:
    class Crooked(Method[OwnSettings, OwnSynthesis], family="crooked"):
        def quux(self) -> None: ...


def misspelt_value() -> None:
    class Crooked(Plain, family="crooked"):
        presets = {"dimensions": 3}  # noqa: RUF012


def too_few_parameters() -> None:
    class Crooked(Method[OwnSettings, OwnSynthesis], family="crooked"):
        def layout(self, settings: OwnSettings, run: RunDescription) -> Layout: ...  # type: ignore[override, empty-body]


def parameters_of_the_old_contract() -> None:
    class Crooked(Method[OwnSettings, OwnSynthesis], family="crooked"):
        def layout(self, settings: OwnSettings, classes: int, stage: int) -> Layout: ...  # type: ignore[override, empty-body]


def swapped_parameters() -> None:
    class Crooked(Plain, family="crooked"):
        def count_weight(self, stage: int, settings: OwnSettings) -> float: ...  # type: ignore[override, empty-body]


def any_parameters() -> None:
    class Crooked(Plain, family="crooked"):
        def stages(self, *given: Any, **named: Any) -> int: ...  # type: ignore[empty-body]


def keyword_only() -> None:
    class Crooked(Plain, family="crooked"):
        def stages(self, *, settings: OwnSettings) -> int: ...  # type: ignore[override, empty-body]


def a_number_for_a_method() -> None:
    class Crooked(Plain, family="crooked"):
        stages = 3  # type: ignore[assignment]


def a_property_for_a_method() -> None:
    class Crooked(Plain, family="crooked"):
        @property
        def stages(self) -> int: ...  # type: ignore[override, empty-body]


def no_schemas() -> None:
    class Crooked(Method, family="crooked"):
        def layout(self, settings: Any, run: RunDescription, stage: int) -> Layout: ...  # type: ignore[empty-body]


def schemas_that_are_none() -> None:
    class Crooked(Method[int, dict], family="crooked"):  # type: ignore[type-var]
        def layout(self, settings: Any, run: RunDescription, stage: int) -> Layout: ...  # type: ignore[empty-body]


def no_family() -> None:
    class Crooked(Method[OwnSettings, OwnSynthesis]):  # type: ignore[call-arg]
        pass


DEFINITIONS: dict[Callable[[], None], str] = {
    misspelt: r"Crooked\.layuot is no part of the contract of a Method; did you mean layout\?",
    misspelt_in_a_subclass: r"Crooked\.stage_inputs is no part of the contract .* did you mean stage_input\?",
    misspelt_value: r"Crooked\.presets is no part of the contract .* did you mean preset\?",
    invented: r"Crooked\.quux is no part of the contract of a Method$",
    too_few_parameters: r"layout takes \(self, settings, run\), .* asks for \(self, settings, run, stage\)",
    parameters_of_the_old_contract: r"layout takes \(self, settings, classes, stage\), .* asks for",
    swapped_parameters: r"count_weight takes \(self, stage, settings\), .* asks for \(self, settings, stage\)",
    any_parameters: r"stages takes \(self, given, named\), .* asks for \(self, settings\)",
    keyword_only: r"stages takes \(self, settings\), .* asks for",
    a_number_for_a_method: r"stages is not a method",
    a_property_for_a_method: r"stages is not a method",
    no_schemas: r"Crooked does not name its settings: class Crooked\(Method\[\.\.\.\]\)",
    schemas_that_are_none: r"Crooked does not name its settings",
    no_family: r"family",
}


@pytest.mark.parametrize(("define", "complaint"), DEFINITIONS.items(), ids=[define.__name__ for define in DEFINITIONS])
def test_a_class_that_does_not_keep_the_contract_cannot_be_defined(define: Callable[[], None], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        define()


def test_a_method_that_lacks_a_member_cannot_be_registered() -> None:
    class Half(Method[OwnSettings, OwnSynthesis], family="half"):
        def layout(self, settings: OwnSettings, run: RunDescription, stage: int) -> Layout: ...  # type: ignore[empty-body]

    with pytest.raises(TypeError, match=r"abstract.*synthesise"):
        Half("half", "test", "none")  # type: ignore[abstract]
    with pytest.raises(TypeError, match="Half has no synthesise"):
        check_complete(Half)
    check_complete(Plain)


@pytest.mark.parametrize(
    "preset", [{"dimensions": -1}, {"dimensions": "many"}, {"dimension": 3}, {"dimensions": 3, "steps": 5}], ids=str
)
def test_a_preset_that_the_schema_refuses_is_an_error_at_once(preset: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="settings of crooked"):
        plain("crooked", preset)


@pytest.mark.parametrize("nothing", [{"release_kinds": frozenset()}, {"data_kinds": frozenset()}], ids=str)
def test_a_method_says_what_it_releases_and_of_which_data(nothing: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="what it releases"):
        plain(**nothing)
    assert plain(release_kinds=frozenset({Kind.STATISTICS})).data_kinds == {DataKind.IMAGE}


def test_two_methods_cannot_have_one_name() -> None:
    with pytest.raises(TypeError, match="two methods are called twin"):
        register([plain("twin"), plain("other"), plain("twin", {"dimensions": 1})])


def test_the_registry_knows_its_methods_by_name() -> None:
    assert all(method(name) is entry and entry.name == name for name, entry in METHODS.items())
    with pytest.raises(ConfigError, match="there is no method 'magic'; known are dm, "):
        method("magic")


def test_a_run_says_what_its_records_are() -> None:
    images, table = RunDescription(("a",), (3, 8, 8), 1), RunDescription(("a",), (14,), 1)
    assert (images.kind, table.kind) == (DataKind.IMAGE, DataKind.TABLE) and images.image_shape == (3, 8, 8)
    with pytest.raises(ValueError, match=r"records of shape \(14,\) are no images"):
        _ = table.image_shape


def test_the_public_facts_of_a_run_are_without_those_who_work_for_it() -> None:
    run = RunDescription(("a",), (1, 8, 8), 1, 5, b"x", runner=object(), progress=print)  # type: ignore[arg-type]
    public = run.public
    assert public.runner is None and public.progress is silent
    assert (public.classes, public.shape, public.public_seed) == (run.classes, run.shape, run.public_seed)
    assert (public.images_per_class, public.backbone_sha256) == (5, b"x")
