"""Gaussians from noisy moments: valid covariances, and the divergence that torch gives."""

from __future__ import annotations

import torch

from dpdd.common.methods.sps.feature_statistics import moments, unpack
from dpdd.common.methods.sps.gaussian_fit import FLOOR, divergence, fit


def test_the_divergence_is_that_of_torch_and_zero_at_the_target() -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(2, 4, 50, dtype=torch.float64, generator=generator)
    other = 1.3 * torch.randn(2, 4, 50, dtype=torch.float64, generator=generator) + 0.2
    target = fit(*unpack(moments(z), 4), torch.tensor([True, True]), gamma=2.0)
    assert divergence(target, *unpack(moments(z), 4)).abs().max() < 1e-9
    means, second = unpack(moments(other), 4)
    eye = torch.eye(4, dtype=torch.float64)
    covariances = second - means[:, :, None] * means[:, None, :] + target.jitters[:, None, None] * eye
    p = torch.distributions.MultivariateNormal(target.means, target.covariances)
    q = torch.distributions.MultivariateNormal(means, covariances)
    torch.testing.assert_close(divergence(target, means, second), torch.distributions.kl_divergence(p, q) / 4)


def test_noisy_covariances_become_valid_and_the_jitter_has_a_floor() -> None:
    noisy = torch.diag(torch.tensor([2.0, 1.0, -0.5], dtype=torch.float64))[None]
    fitted = fit(torch.zeros(1, 3, dtype=torch.float64), noisy, torch.tensor([True]), gamma=2.0)
    assert fitted.jitters[0] == 1.0
    torch.testing.assert_close(
        torch.linalg.eigvalsh(fitted.covariances[0]), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    )
    clean = torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64))[None]
    fitted = fit(torch.zeros(1, 3, dtype=torch.float64), clean, torch.tensor([True]), gamma=2.0)
    torch.testing.assert_close(fitted.jitters[0], torch.tensor(FLOOR, dtype=torch.float64))
