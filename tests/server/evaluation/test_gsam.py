"""GSAM against its base optimiser, against SAM and the paper's equations by hand, and on a sharp valley."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.server.evaluation.gsam import GSAM, descent


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.SiLU(), nn.Linear(7, 3)).double()


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    return [
        (torch.randn(16, 5, generator=generator).double(), torch.randint(3, (16,), generator=generator))
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    "base",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    ],
)
def test_without_a_climb_it_is_the_base_optimiser_step_for_step(
    base: Callable[[object], torch.optim.Optimizer],
) -> None:
    ours, plain = network(), network()
    gsam, optimiser = GSAM(base(ours.parameters()), rho=0.0, alpha=0.7), base(plain.parameters())
    for x, y in batches(20):
        loss = gsam.step(lambda x=x, y=y: functional.cross_entropy(ours(x), y))  # type: ignore[misc]
        optimiser.zero_grad()
        expected = functional.cross_entropy(plain(x), y)
        expected.backward()
        optimiser.step()
        assert loss == pytest.approx(expected.item(), rel=1e-12)
        for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_one_step_is_the_papers() -> None:
    (x, y), rho, alpha, rate = batches(1)[0], 0.3, 0.4, 0.05
    ours, copy = network(), network()
    GSAM(torch.optim.SGD(ours.parameters(), lr=rate), rho, alpha).step(lambda: functional.cross_entropy(ours(x), y))

    parameters = list(copy.parameters())

    def gradient() -> Tensor:
        found = torch.autograd.grad(functional.cross_entropy(copy(x), y), parameters)
        return torch.cat([g.flatten() for g in found])

    start = nn.utils.parameters_to_vector(parameters).detach()
    first = gradient()
    nn.utils.vector_to_parameters(start + rho * first / first.norm(), parameters)
    second = gradient()
    unit = second / second.norm()
    orthogonal = first - (first @ unit) * unit
    assert orthogonal.norm() > 1e-3 * first.norm(), "the test would not see a wrong alpha"
    expected = start - rate * (second - alpha * orthogonal)
    torch.testing.assert_close(nn.utils.parameters_to_vector(ours.parameters()).detach(), expected)


def test_the_gap_term_is_orthogonal_over_all_tensors_together() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = ([torch.randn(n, generator=generator).double() for n in (3, 4)] for _ in range(2))
    taken = [(s - d) / 0.5 for s, d in zip(second, descent(first, second, 0.5), strict=True)]
    assert abs(sum(float(t @ s) for t, s in zip(taken, second, strict=True))) < 1e-12
    assert descent(first, second, 0.0)[0].equal(second[0])


def test_weights_come_back_when_the_second_pass_fails() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    calls: list[int] = []

    def loss_of() -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return weight.square().sum()

    with pytest.raises(RuntimeError, match="memory"):
        GSAM(torch.optim.SGD([weight], lr=0.1), rho=0.5, alpha=0.1).step(loss_of)
    assert weight.tolist() == [1.0, 2.0]


def test_parameters_that_are_frozen_or_unused_stay() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    gsam = GSAM(torch.optim.SGD([used, unused, frozen], lr=0.1), rho=0.1, alpha=0.1)
    gsam.step(lambda: used.square().sum() + frozen.sum())
    assert used.tolist() != [1.0, 1.0] and unused.tolist() == frozen.tolist() == [1.0, 1.0]


def test_it_leaves_a_sharp_valley_for_a_flat_one() -> None:
    """Two valleys of equal depth meet near 0: a sharp one around -0.2, and a flat one around 2."""

    def ends_at(rho: float) -> float:
        weight = nn.Parameter(torch.tensor(-0.05))
        gsam = GSAM(torch.optim.SGD([weight], lr=0.02), rho=rho, alpha=0.0)
        for _ in range(60):
            gsam.step(lambda: torch.minimum(20 * (weight + 0.2) ** 2, 0.2 * (weight - 2) ** 2))
        return weight.item()

    assert ends_at(0.0) == pytest.approx(-0.2, abs=0.05) and ends_at(0.6) > 0.2


@pytest.mark.parametrize("rho, alpha", [(-0.1, 0.0), (0.1, -1.0), (float("nan"), 0.0)])
def test_senseless_settings_are_refused(rho: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="from 0 up"):
        GSAM(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), rho, alpha)
