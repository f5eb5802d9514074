"""What private halves share: a contract that is checked where it is broken, and plans of Gaussian releases.

In one stage or in several, these cost exactly the budget that was asked for, and no more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import (
    Contribution,
    Mechanism,
    independent_of_batch_position,
    mechanism,
    privatised_sum,
)
from dpdd.client.mechanisms.dp_merf import MECHANISM as DP_MERF
from dpdd.client.records.records import Records
from dpdd.common.config import Settings
from dpdd.common.methods.base import check_complete
from dpdd.common.methods.dp_merf.settings import MethodSettings as DPMERFSettings
from dpdd.common.methods.plan import gaussian_plan
from dpdd.common.methods.registry import METHODS, method
from dpdd.common.privacy.accounting import (
    EXACT,
    _pld_epsilon,
    calibrate,
    gaussian_delta,
    gaussian_releases,
    guarantee,
    rdp_guarantee,
)
from dpdd.common.privacy.clipping import Layout, class_segment, product_segment
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, compose, gaussian_mu, parts
from dpdd.common.privacy.privatise import noise_distance
from dpdd.common.wire.request import ReleaseRequest

FIRST = Layout((class_segment("sums", 50, 3), product_segment("square", 40, 40, 3, norm=0.7)))
LATER = Layout((class_segment("count", 1, 3), product_segment("residual", 3, 40, 3, norm=0.9)))


def request(epsilon: float = 1.0, delta: float = 1e-5, stage: int = 0) -> ReleaseRequest:
    return ReleaseRequest(
        run="test",
        method="sps",
        settings={},
        epsilon=epsilon,
        delta=delta,
        classes=("a", "b", "c"),
        shape=(1, 8, 8),
        public_seed=1,
        stage=stage,
    )


def layouts(stages: int) -> list[Layout]:
    return [FIRST, *[LATER] * (stages - 1)]


def total(stages: int, epsilon: float, delta: float, share: float) -> tuple[Event, float]:
    """What all stages' own plans add up to, with nothing taken from `whole`; all but the first are alike."""
    first, last = (gaussian_plan(request(epsilon, delta, stage), layouts(stages), share) for stage in (0, stages - 1))
    plans = [first, *[last] * (stages - 1)]
    return compose(*(plan.event for plan in plans)), math.fsum(plan.distance for plan in plans)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 8.0, 20.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 50])
def test_all_stages_together_cost_exactly_what_was_asked(epsilon: float, delta: float, stages: int) -> None:
    for share in (0.01, 0.1, 0.3, 0.5, 0.99):
        event, distance = total(stages, epsilon, delta, share)
        mu = gaussian_mu(event)
        assert mu is not None
        spent = gaussian_delta(mu, epsilon) + (1.0 + math.exp(epsilon)) * distance
        assert 0.9999 * delta < spent <= delta, "not a bit more than delta, and hardly less"
        assert guarantee(event, delta).epsilon <= epsilon * (1.0 + 1e-11)
        assert guarantee(event, delta).epsilon > 0.999 * epsilon


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_other_accountants_agree(epsilon: float, stages: int) -> None:
    """Privacy-loss distributions give the same within their grid, Rényi accounting never less."""
    event, _ = total(stages, epsilon, 1e-5, 0.3)
    by_loss, by_renyi = _pld_epsilon(event, 1e-5), rdp_guarantee(event, 1e-5).epsilon
    assert by_loss == pytest.approx(epsilon, rel=2e-3) and by_loss >= 0.9999 * epsilon
    assert epsilon <= by_renyi < 1.3 * epsilon


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("stages", [2, 4, 11])
def test_the_first_stage_has_its_share(stages: int, share: float) -> None:
    plans = [gaussian_plan(request(stage=stage), layouts(stages), share) for stage in range(stages)]
    precisions = [1.0 / part.sigma**2 for plan in plans for part in parts(plan.event) if isinstance(part, Gaussian)]
    assert precisions[0] / sum(precisions) == pytest.approx(share)
    assert len(set(precisions[1:])) == 1
    one = gaussian_plan(request(), [FIRST]).event
    assert isinstance(one, Gaussian) and sum(precisions) == pytest.approx(1.0 / one.sigma**2, rel=1e-6)


@pytest.mark.parametrize("stages", [2, 3, 7])
def test_every_stage_names_the_same_whole(stages: int) -> None:
    """What the ledger reserves at the first stage is, to the bit, what later stages say that they are part of."""
    plans = [gaussian_plan(request(stage=stage), layouts(stages), 0.4) for stage in range(stages)]
    event, distance = total(stages, 1.0, 1e-5, 0.4)
    for plan in plans:
        assert plan.whole == event and plan.whole_distance == distance
        assert plan.guarantee.epsilon == 1.0 and plan.guarantee.delta == 1e-5 and plan.guarantee.accountant == EXACT
    assert [plan.coordinates for plan in plans] == [FIRST.coordinates, *[LATER.coordinates] * (stages - 1)]


@pytest.mark.parametrize("stages", [1, 3])
def test_the_distance_is_that_of_this_release_s_noise(stages: int) -> None:
    for stage, layout in enumerate(layouts(stages)):
        plan = gaussian_plan(request(stage=stage), layouts(stages), 0.4)
        assert isinstance(plan.event, Gaussian)
        assert plan.distance == noise_distance(plan.event, layout) > 0.0


def test_one_stage_has_no_whole_and_the_least_noise() -> None:
    plan = gaussian_plan(request(), [FIRST])
    assert plan.whole is None and plan.whole_distance is None and isinstance(plan.event, Gaussian)
    least = calibrate(gaussian_releases(1), 1.0, 1e-5)
    assert least <= plan.event.sigma < least * (1.0 + 1e-6)


def test_without_a_budget_there_is_no_noise() -> None:
    plan = gaussian_plan(request(epsilon=math.inf, stage=1), layouts(2), 0.5)
    assert plan.event == NonPrivate() and plan.distance == 0.0 and plan.coordinates == LATER.coordinates


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_share_that_leaves_a_stage_nothing_is_refused(share: float) -> None:
    for epsilon in (1.0, math.inf):
        with pytest.raises(ValueError, match="between 0 and 1"):
            gaussian_plan(request(epsilon), layouts(2), share)


def test_budgets_too_loose_for_the_sampler_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="smaller epsilon or a larger delta"):
        gaussian_plan(replace(request(), epsilon=32.0, delta=1e-12), [FIRST])


def alike(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
    return images.reshape(len(images), -1)[:, :3] / 4.0, {}


def by_place(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
    """Off by a little more at every place of the batch, as no mechanism should be."""
    return alike(images, labels)[0] + np.float32(1e-6) * np.arange(len(images), dtype=np.float32)[:, None], {}


@pytest.mark.parametrize("contributions", [alike, by_place])
def test_a_record_s_contribution_does_not_depend_on_its_place(
    contributions: Callable[[NDArray[np.float32], NDArray[np.int64]], Contribution],
) -> None:
    """Else removing one record would change the contributions of those after it, too."""
    images = np.random.default_rng(0).random((40, 1, 8, 8), dtype=np.float32)
    labels, layout = np.arange(40) % 2, Layout((class_segment("x", 3, 2),))
    plan = gaussian_plan(request(epsilon=math.inf), [layout])

    def sums(kept: slice) -> NDArray[np.int64]:
        records = Records(images[kept], labels[kept])
        found = privatised_sum(records, layout, contributions, plan, SeededEntropy(0), lambda *_: None, batch=16)
        return np.array(found.arrays["x"])

    whole = sums(slice(None))
    for start in (1, 2, 17):
        np.testing.assert_array_equal(sums(slice(0, start)) + sums(slice(start, None)), whole)


@pytest.mark.parametrize("count", [1, 15, 16, 17])
def test_every_batch_has_the_same_shape(count: int) -> None:
    """Libraries round by the size of a product, too: of a smaller batch the same records might weigh otherwise."""
    shapes, layout = set(), Layout((class_segment("x", 3, 2),))

    def watched(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        shapes.add((images.shape, labels.shape))
        return alike(images, labels)

    records = Records(np.ones((count, 1, 8, 8), np.float32), np.arange(count) % 2)
    plan = gaussian_plan(request(epsilon=math.inf), [layout])
    privatised_sum(records, layout, watched, plan, SeededEntropy(0), lambda *_: None, batch=16)
    assert shapes == {((16, 1, 8, 8), (16,))}


def test_rows_are_tried_as_codes() -> None:
    """Noise between codes adds nothing, and says nothing of places."""

    def of_codes(rows: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        found, _ = by_place(rows, labels)
        found[(rows != np.floor(rows)).any(axis=1)] = np.nan
        return found, {}

    assert not independent_of_batch_position(of_codes, (16, 5), 2)
    assert independent_of_batch_position(alike, (16, 5), 2)


@pytest.mark.parametrize("features", [8, 10, 33])
def test_dp_merf_s_contributions_do_not_depend_on_their_place(features: int) -> None:
    """With 10 frequencies some processors' matrix products round odd rows differently from even ones."""
    values = DPMERFSettings(features=features)
    asked = replace(request(epsilon=math.inf), method="dp-merf", shape=(1, 8, 8))
    images, labels = np.random.default_rng(0).random((40, 1, 8, 8), dtype=np.float32), np.arange(40) % 3
    plan = method("dp-merf").plan(asked, values)

    def sums(kept: slice) -> NDArray[np.int64]:
        records = Records(images[kept], labels[kept])
        found = DP_MERF.run(records, asked, values, plan, SeededEntropy(0), lambda *_: None)
        return np.array(found.arrays["embedding"])

    whole = sums(slice(None))
    for start in (1, 2, 17):
        np.testing.assert_array_equal(sums(slice(0, start)) + sums(slice(start, None)), whole)


# The contract ---------------------------------------------------------------------------------------------------------


class OwnSettings(Settings):
    pass


class Plain(Mechanism[OwnSettings]):
    """Keeps the contract."""

    def run(self, records: Any, request: Any, settings: Any, plan: Any, entropy: Any, progress: Any) -> Any:
        return self._summed(records)

    def _summed(self, records: Any) -> Any:
        raise NotImplementedError


def misspelt() -> None:
    class Crooked(Mechanism[OwnSettings]):
        def rnu(self, records: Any, request: Any, settings: Any, plan: Any, entropy: Any, progress: Any) -> Any: ...


def misspelt_in_a_subclass() -> None:
    class Crooked(Plain):
        def runs(self, records: Any, request: Any, settings: Any, plan: Any, entropy: Any, progress: Any) -> Any: ...


def too_few_parameters() -> None:
    class Crooked(Mechanism[OwnSettings]):
        def run(self, records: Any) -> Any: ...  # type: ignore[override]


def other_parameters() -> None:
    class Crooked(Plain):
        def run(self, records: Any, request: Any, settings: Any, plan: Any, progress: Any, entropy: Any) -> Any: ...


def a_static_method() -> None:
    class Crooked(Plain):
        @staticmethod
        def run(records: Any, request: Any) -> Any: ...  # type: ignore[override]


def no_schema() -> None:
    class Crooked(Mechanism):
        def run(self, records: Any, request: Any, settings: Any, plan: Any, entropy: Any, progress: Any) -> Any: ...


def a_schema_that_is_none() -> None:
    class Crooked(Mechanism[dict]):  # type: ignore[type-var]
        def run(self, records: Any, request: Any, settings: Any, plan: Any, entropy: Any, progress: Any) -> Any: ...


DEFINITIONS: dict[Callable[[], None], str] = {
    misspelt: r"Crooked\.rnu is no part of the contract of a Mechanism; did you mean run\?",
    misspelt_in_a_subclass: r"Crooked\.runs is no part of the contract of a Mechanism; did you mean run\?",
    too_few_parameters: r"run takes \(self, records\), .* asks for \(self, records, request, .*progress\)",
    other_parameters: r"run takes \(.*plan, progress, entropy\), .* asks for \(.*plan, entropy, progress\)",
    a_static_method: r"run is not a method",
    no_schema: r"Crooked does not name its settings: class Crooked\(Mechanism\[\.\.\.\]\)",
    a_schema_that_is_none: r"Crooked does not name its settings",
}


@pytest.mark.parametrize(("define", "complaint"), DEFINITIONS.items(), ids=[define.__name__ for define in DEFINITIONS])
def test_a_mechanism_that_does_not_keep_the_contract_cannot_be_defined(
    define: Callable[[], None], complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        define()


def test_a_mechanism_that_lacks_a_member_cannot_be_made() -> None:
    class Half(Mechanism[OwnSettings]):
        def _help(self) -> None: ...

    with pytest.raises(TypeError, match=r"abstract.*run"):
        Half()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="Half has no run"):
        check_complete(Half)
    assert Plain().settings_schema is OwnSettings


@pytest.mark.parametrize("name", METHODS)
def test_the_private_half_has_the_settings_of_the_public_one(name: str) -> None:
    half = mechanism(method(name))
    assert half.settings_schema is method(name).settings_schema and isinstance(half, Mechanism)


@pytest.mark.parametrize(
    ("half", "complaint"),
    [
        ({"MECHANISM": Plain()}, "the halves of dp-merf have different settings"),
        ({"MECHANISM": Plain}, "has no MECHANISM, so there is no private half of dp-merf"),
        ({"plan": None, "run": None}, "has no MECHANISM, so there is no private half of dp-merf"),
    ],
    ids=["other settings", "a class", "functions"],
)
def test_halves_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch, half: dict[str, object], complaint: str
) -> None:
    module = SimpleNamespace(__name__="dpdd.client.mechanisms.dp_merf", **half)
    monkeypatch.setitem(sys.modules, "dpdd.client.mechanisms.dp_merf", module)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=complaint):
        mechanism(method("dp-merf"))
