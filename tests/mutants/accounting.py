"""Mutants of the accountant, of calibration and planning, and of the filter: what is claimed of true noise."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

ACCOUNTING = "common/privacy/accounting.py"
EVENTS = "common/privacy/events.py"
FILTERS = "common/privacy/filters.py"
SPENT = "common/privacy/spent.py"
PLAN = "common/methods/plan.py"
_ACCOUNTING = "tests/common/privacy/test_accounting.py::"
_FILTERS = "tests/common/privacy/test_filters.py::"
_SPENT = "tests/common/privacy/test_spent.py::"
_CONTRACT = "tests/methods/test_contract.py::test_mechanism"
_DISTANCE = "tests/methods/test_noise.py::test_the_distance_to_ideal_noise_comes_off_delta"

ACCOUNTS = (
    Mutant(
        "central-limit-accounting",
        ACCOUNTING,
        "    bounds = [Guarantee(_pld_epsilon(event, delta), delta, PLD)]\n",
        "    mu = math.sqrt(\n"
        "        sum(\n"
        "            part.steps * part.rate**2 * math.expm1(1.0 / part.sigma**2)\n"
        "            for part in parts(event)\n"
        "            if isinstance(part, PoissonGaussian)\n"
        "        )\n"
        "    )\n"
        "    bounds = [Guarantee(gaussian_epsilon(mu, delta), delta, PLD)]\n",
        "accounting",
        "The central limit is no bound: for DP-GENG's matching it claims 6.94 where 9.73 is true.",
        (_ACCOUNTING + "test_poisson_sampling", _ACCOUNTING + "test_the_central_limit_formula_promises_too_much"),
    ),
    Mutant(
        "steps-are-not-composed",
        ACCOUNTING,
        "            return dp_accounting.SelfComposedDpEvent(sampled, part.steps)",
        "            return dp_accounting.SelfComposedDpEvent(sampled, 1)",
        "composition",
        "A thousand samples are accounted for as one.",
        (_ACCOUNTING + "test_poisson_sampling",),
    ),
    Mutant(
        "epsilon-rounded-down",
        ACCOUNTING,
        "        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)\n"
        "    return high * _ULPS",
        "        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)\n"
        "    return low / _ULPS",
        "accounting",
        "The printed ε is below the true one: δ at it is above the promised δ.",
        (_ACCOUNTING + "test_largest_mu_and_epsilon_round_towards_privacy",),
    ),
    Mutant(
        "calibration-ends-on-the-wrong-side",
        ACCOUNTING,
        "        if loss(last) <= epsilon:\n"
        "            break  # always, unless rounding makes a loss rise with the noise somewhere\n"
        "    return last",
        "        if loss(last) <= epsilon:\n"
        "            break  # always, unless rounding makes a loss rise with the noise somewhere\n"
        "    return first",
        "accounting",
        "The noise is that of the last σ which was found to be too little.",
        (_ACCOUNTING + "test_calibrated_poisson_noise_is_the_least_that_passes",),
    ),
    Mutant(
        "noise-below-the-exact-gaussian",
        ACCOUNTING,
        "        sigma = unit / largest_mu(epsilon, delta)\n"
        "        while gaussian_delta(gaussian_mu(event_of(sigma)) or 0.0, epsilon) > delta:\n"
        "            sigma = math.nextafter(sigma, math.inf)\n"
        "        return sigma",
        "        return unit / largest_mu(epsilon, delta) * (1.0 - 1e-7)",
        "accounting",
        "σ is a ten-millionth below the least that meets the budget: (ε, δ) is claimed and not met.",
        (_ACCOUNTING + "test_calibrated_gaussian_noise_is_the_least_that_passes",),
    ),
    Mutant(
        "tiny-losses-lose-to-rounding",
        ACCOUNTING,
        "    return computed + part.steps * _ROUNDING / (np.asarray(orders) - 1.0)",
        "    return computed",
        "accounting",
        "Rényi divergences of tiny losses come out of floating point too small, even negative: steps seem free.",
        (_ACCOUNTING + "test_rounding_never_makes_a_divergence_too_small",),
    ),
    Mutant(
        "renyi-of-gaussians-by-half",
        ACCOUNTING,
        "            total += np.asarray(orders) * part.releases / (2.0 * part.sigma**2)",
        "            total += np.asarray(orders) * part.releases / (4.0 * part.sigma**2)",
        "accounting",
        "The divergence of order α is α/2σ²; half of it admits twice as many releases.",
        (_ACCOUNTING + "test_renyi_is_never_below_the_exact_gaussian",),
    ),
    Mutant(
        "releases-are-not-counted",
        EVENTS,
        "        total += part.releases / part.sigma**2\n    return math.sqrt(total)",
        "        total += 1.0 / part.sigma**2\n    return math.sqrt(total)",
        "composition",
        "n Gaussians on the same records are accounted for as one.",
        ("tests/client/mechanisms/test_base.py::test_other_accountants_agree",),
    ),
    Mutant(
        "equal-events-merge-into-one",
        EVENTS,
        "                flat[-1] = PoissonGaussian(part.sigma, part.rate, last.steps + part.steps)",
        "                flat[-1] = PoissonGaussian(part.sigma, part.rate, max(last.steps, part.steps))",
        "composition",
        "Two rounds of samples are written down as one.",
        ("tests/client/mechanisms/test_matching.py::test_one_entry_of_the_ledger_holds_the_event_of_all_draws",),
    ),
    Mutant(
        "stages-have-a-budget-each",
        PLAN,
        "        return compose(*events(sigma))\n"
        "\n"
        "    def distances(sigma: float) -> list[float]:\n"
        "        return [noise_distance(event, each) for event",
        "        return events(sigma)[request.stage]\n"
        "\n"
        "    def distances(sigma: float) -> list[float]:\n"
        "        return [noise_distance(event, each) for event",
        "composition",
        "Each stage is calibrated to all of (ε, δ), so M stages cost √M times the promised μ.",
        (_CONTRACT + "[plan-sps-stages]",),
    ),
    Mutant(
        "distance-is-not-taken-off-delta",
        PLAN,
        "    sigma = calibrate(whole, request.epsilon, request.delta - slack)\n    guarantee =",
        "    sigma = calibrate(whole, request.epsilon, request.delta)\n    guarantee =",
        "delta",
        "The sampler's distance to ideal noise is part of δ; noise that uses all of δ by itself is not (ε, δ)-private.",
        (_DISTANCE + "[dp-merf]",),
    ),
    Mutant(
        "distance-costs-itself-only",
        PLAN,
        "    slack = (1.0 + math.exp(request.epsilon)) * math.fsum(distances(first))",
        "    slack = math.fsum(distances(first))",
        "delta",
        "Both neighbours' releases are off the ideal, one of them times e^ε: (1 + e^ε) times the distance comes off δ.",
        (_DISTANCE + "[dp-merf]",),
    ),
    Mutant(
        "sampled-sums-of-one-step",
        PLAN,
        "        return sampled_event(max(sigma, LEAST_NOISE), rate, steps)\n\n    def distance",
        "        return sampled_event(max(sigma, LEAST_NOISE), rate, 1)\n\n    def distance",
        "composition",
        "DP-CDA's mixtures are calibrated as one, and all of them are released.",
        (_CONTRACT + "[event-dp-cda]",),
    ),
    Mutant(
        "distance-of-one-mixture",
        PLAN,
        "        return steps * noise_distance(sampled_event(max(sigma, LEAST_NOISE), rate, 1), step)",
        "        return noise_distance(sampled_event(max(sigma, LEAST_NOISE), rate, 1), step)",
        "delta",
        "All mixtures' noise is off the ideal, and δ pays for one of them.",
        (_CONTRACT + "[event-dp-cda]",),
    ),
    Mutant(
        "rounds-are-reserved-as-one",
        "common/methods/dp_kip/planning.py",
        "    event, whole = (sampled_event(sigma, settings.rate, steps) for steps in (1, settings.steps))",
        "    event, whole = (sampled_event(sigma, settings.rate, steps) for steps in (1, 1))",
        "composition",
        "DP-KIP's gradients are asked for step by step, and the ledger pays for one step.",
        (_CONTRACT + "[plan-dp-kip]",),
    ),
    Mutant(
        "rounds-are-calibrated-as-one",
        "common/methods/dp_kip/planning.py",
        "    found = calibrate(lambda sigma: sampled_event(max(sigma, LEAST_NOISE), rate, steps), epsilon, delta)",
        "    found = calibrate(lambda sigma: sampled_event(max(sigma, LEAST_NOISE), rate, 1), epsilon, delta)",
        "composition",
        "Each step has the noise of a whole run: all steps together cost many times the promised ε.",
        (_CONTRACT + "[plan-dp-kip]",),
    ),
    Mutant(
        "the-auxiliary-stage-is-not-paid",
        "common/methods/matching/planning.py",
        "        return compose(*events(sigma))",
        "        return events(sigma)[-1]",
        "composition",
        "The DP-MERF release that auxiliary images come from is neither calibrated nor reserved: it comes on top.",
        ("tests/client/mechanisms/test_matching.py::test_all_draws_and_stages_together_have_the_promised_guarantee",),
    ),
    Mutant(
        "matching-and-expert-are-not-composed",
        "common/methods/dp_geng/planning.py",
        "        return compose(*events(noise))",
        "        return events(noise)[0]",
        "composition",
        "DP-GENG's generator alone is calibrated to (ε, δ); matching and the expert come on top.",
        (_CONTRACT + "[plan-dp-geng-votes]",),
    ),
    Mutant(
        "the-filter-forgets-earlier-releases",
        FILTERS,
        "    mu_of_all, distance = _with_gaussians(spent, new).mu, sum_up(spent.distance, new.distance)",
        "    mu_of_all, distance = _with_gaussians(Spent(), new).mu, sum_up(spent.distance, new.distance)",
        "filter",
        "Each request is judged by itself: any number of them fits.",
        (_FILTERS + "test_gaussian_mode_never_admits_more_than_the_exact_budget",),
    ),
    Mutant(
        "each-order-has-all-of-delta",
        FILTERS,
        "    conversions = _conversion(np.asarray(orders), left * shares)",
        "    conversions = _conversion(np.asarray(orders), left * np.ones(len(shares)))",
        "filter",
        "Which order decides depends on the interaction, so the orders' failures add up: 19 orders have 19 times δ.",
        (_FILTERS + "test_the_orders_shares_of_delta_add_up_to_no_more_than_delta",),
    ),
    Mutant(
        "another-filter-at-every-request",
        FILTERS,
        "    mode = spent.mode or mode_for(budget, new)\n    if spent.closed:",
        "    mode = mode_for(budget, new)\n    if spent.closed:",
        "filter",
        "Sampled releases after plain ones are judged by a filter that knows nothing of those: two budgets are spent.",
        (_FILTERS + "test_a_gaussian_ledger_takes_nothing_else",),
    ),
    Mutant(
        "a-second-single-release",
        FILTERS,
        "    if spent.count:\n        requested = guarantee(new.event, budget.delta).epsilon\n",
        "    if spent.count < 0:\n        requested = guarantee(new.event, budget.delta).epsilon\n",
        "filter",
        "A release that used the budget up by its exact accounting is followed by others.",
        (_FILTERS + "test_a_first_release_that_only_exact_accounting_admits_closes_the_ledger",),
    ),
    Mutant(
        "the-filter-ignores-distances",
        FILTERS,
        "    return budget.delta - (1.0 + math.exp(budget.epsilon)) * distance",
        "    return budget.delta",
        "delta",
        "The noise's distance to the ideal over all releases is not paid for out of the silo's δ.",
        (_FILTERS + "test_a_distance_costs_one_plus_e_to_the_epsilon_times_itself",),
    ),
    Mutant(
        "nothing-protects-and-fits",
        FILTERS,
        "    if any(isinstance(part, NonPrivate) for part in parts(new.event)):",
        "    if all(isinstance(part, NonPrivate) for part in parts(new.event)) and spent.count > 10**9:",
        "filter",
        "An event without any noise is admitted by a budget.",
        (_FILTERS + "test_no_noise_never_fits",),
        (Edit(FILTERS, "            spent = replace(spent, earlier=math.inf)", "            continue"),),
    ),
    Mutant(
        "a-written-off-budget-opens-again",
        FILTERS,
        "    if spent.closed:\n        requested",
        "    if spent.closed and spent.count < 0:\n        requested",
        "filter",
        "What nobody could rebuild was written off, so that nothing more is spent; here it goes on.",
        (_SPENT + "test_a_budget_that_was_written_off_admits_nothing",),
    ),
    Mutant(
        "a-new-sigma-forgets-the-old",
        SPENT,
        "        return replace(self, earlier=sum_up(self.earlier, self._run), sigma=sigma, releases=releases)",
        "        return replace(self, sigma=sigma, releases=releases)",
        "filter",
        "A release with other noise starts the sum over: asking for two σ in turn never uses the budget up.",
        (_SPENT + "test_gaussian_decisions_agree_with_adding_all_up_again",),
    ),
    Mutant(
        "sums-round-down",
        SPENT,
        "    return math.nextafter(total, math.inf) if error > 0.0 else total",
        "    return math.nextafter(total, 0.0) if error < 0.0 else total",
        "filter",
        "Tiny releases are lost in the last bit of what was spent: a million of them cost nothing.",
        (_SPENT + "test_a_sum_is_rounded_up_and_by_no_more_than_one_step",),
    ),
)
