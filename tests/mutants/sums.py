"""Mutants of clipping, counting and sampling: what one record can do to a sum."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

CLIPPING = "common/privacy/clipping.py"
COUNTING = "common/privacy/counting.py"
FACTORED = "common/privacy/factored.py"
SAMPLING = "common/privacy/sampling.py"
PRIVATISE = "common/privacy/privatise.py"
_CLIPPING = "tests/common/privacy/test_clipping.py::"
_COUNTING = "tests/common/privacy/test_counting.py::"
_FACTORED = "tests/common/privacy/test_factored.py::"
_SAMPLING = "tests/common/privacy/test_sampling.py::"

SUMS = (
    Mutant(
        "no-clip-of-plain-rows",
        CLIPPING,
        "    values *= (FIXED_POINT_ONE * _MARGIN / np.maximum(norms * (FIXED_POINT_ONE / "
        "max(clip_norm, 1)), 1.0))[:, None]\n"
        "    grid = np.trunc(values, out=values)\n"
        "    # Exact: float64 adds integers without error up to 2^53, and a sum that passed 2^53 stays "
        "above FIXED_POINT_ONE².\n"
        "    grid[~(_weighted_squares(grid, copies, layout) <= clip_norm * clip_norm)] = 0.0\n",
        """    values *= FIXED_POINT_ONE
    grid = np.trunc(values, out=values)
""",
        "clip",
        "A record's contribution keeps its own norm, so the sum has no bounded sensitivity and σ is in "
        "units of nothing.",
        (_CLIPPING + "test_neighbours_differ_by_at_most_the_grid",),
    ),
    Mutant(
        "norm-ignores-copies",
        CLIPPING,
        '        total += copies[:, index] * np.einsum("ij,ij->i", part, part)',
        '        total += (copies[:, index] > 0) * np.einsum("ij,ij->i", part, part)',
        "clip",
        "A record in k overlapping groups is added k times and counted once: the sum's sensitivity is √k.",
        (_CLIPPING + "test_overlapping_groups_count_as_often_as_they_are_added",),
    ),
    Mutant(
        "plain-rows-take-all-of-the-norm",
        CLIPPING,
        """        return math.isqrt(
            FIXED_POINT_ONE * FIXED_POINT_ONE - sum(factor_bound(segment) ** 4 for segment in self.products)
        )""",
        "        return FIXED_POINT_ONE",
        "clip",
        "Plain rows and outer products each have norm 1, so a record's contribution has norm √2 together.",
        (_CLIPPING + "test_neighbours_differ_by_at_most_the_grid_with_outer_products_too",),
    ),
    Mutant(
        "outer-products-are-not-clipped",
        CLIPPING,
        """    values *= (scale / np.maximum(norms, 1.0))[:, None]
    np.rint(values, out=values)
    values[~(np.einsum("ij,ij->i", values, values) <= bound * bound)] = 0.0  # exact, and never so
""",
        """    values *= scale
    np.rint(values, out=values)
    del norms, bound
""",
        "clip",
        "The factors of an outer product keep their norms, so the second moment of one record is unbounded.",
        (_CLIPPING + "test_neighbours_differ_by_at_most_the_grid_with_outer_products_too",),
    ),
    Mutant(
        "the-other-factor-is-not-clipped",
        CLIPPING,
        "            second = first if right is left else factor_to_grid(right, segment, 1)",
        "            second = first if right is left else np.rint(np.nan_to_num(right) * factor_scale(segment, 1))",
        "clip",
        "Clip skipped on one path: residual ⊗ embedding is clipped on the left only, so a long embedding has a product "
        "of any norm.",
        (_CLIPPING + "test_neighbours_differ_by_at_most_the_grid_with_outer_products_too",),
    ),
    Mutant(
        "a-nan-poisons-the-second-moment",
        CLIPPING,
        """    values[~np.isfinite(values).all(axis=1)] = 0.0
    values /= np.maximum""",
        """    values /= np.maximum""",
        "poisoned record",
        "A NaN in one record makes every entry of the sum of outer products it meets the same constant: one record "
        "overwrites what all others added.",
        (_CLIPPING + "test_one_odd_number_takes_out_all_of_its_record_and_nothing_else",),
        (
            Edit(
                CLIPPING,
                '    values[~(np.einsum("ij,ij->i", values, values) <= bound * bound)] = 0.0  # exact, and never so',
                '    values[np.einsum("ij,ij->i", values, values) > bound * bound] = 0.0',
            ),
        ),
    ),
    Mutant(
        "half-of-a-nan-record-counts",
        CLIPPING,
        "        grid[odd] = 0.0\n",
        "",
        "poisoned record",
        "A record with a NaN in its outer product still adds its plain part, count included, where the "
        "promise is exactly "
        "nothing: an audit's NaN canaries would be told from chance.",
        (_CLIPPING + "test_one_odd_number_takes_out_all_of_its_record_and_nothing_else",),
    ),
    Mutant(
        "sums-in-single-precision",
        CLIPPING,
        "    return (torch.from_numpy(left).T @ torch.from_numpy(right)).numpy().astype(np.int64)",
        "    return (torch.from_numpy(left).float().T @ torch.from_numpy(right).float()).numpy().astype(np.int64)",
        "rounding",
        "Sums of products round beyond 2^24, so one record more can change how all others were "
        "rounded: the sensitivity "
        "is that of the rounding, not of the record.",
        (_CLIPPING + "test_many_records_of_the_largest_entries_add_up_exactly",),
    ),
    Mutant(
        "a-narrow-row-is-spread",
        CLIPPING,
        "    if values.ndim != 2 or values.shape[1] != layout.width or labels.shape != values.shape[:1]:",
        "    if values.ndim != 2 or labels.shape != values.shape[:1]:",
        "clip",
        "One number broadcast over w coordinates is counted once in the norm: the sensitivity is √w.",
        (_CLIPPING + "test_rows_of_another_shape_are_refused",),
    ),
    Mutant(
        "segments-of-one-name",
        CLIPPING,
        "        if not names or len(set(names)) != len(names):  # two",
        "        if not names:  # two",
        "clip",
        "Two segments of one name add into the same rows, where their numbers add up beyond the norm that was checked.",
        (_CLIPPING + "test_layouts_that_would_add_two_segments_into_one_are_refused",),
    ),
    Mutant(
        "a-class-twice-in-one-row",
        CLIPPING,
        "            if len(set(rows)) != len(rows) or not all(0 <= row < self.rows for row in rows):",
        "            if not all(0 <= row < self.rows for row in rows):",
        "clip",
        "A class that names a row twice is added twice to it: 2 in norm, where √2 was counted.",
        (_CLIPPING + "test_segments_that_cannot_be_are_refused",),
    ),
    Mutant(
        "a-clean-sum-can-be-pickled",
        CLIPPING,
        """
    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a clean sum is private and cannot be pickled or copied")
""",
        "",
        "noise drawn twice",
        "A copy of a clean sum can be privatised again, or be stored: noise over stored sums averages away.",
        (_CLIPPING + "test_a_clean_sum_cannot_be_shown_copied_or_stored",),
    ),
    Mutant(
        "noise-twice-over-one-sum",
        CLIPPING,
        "        sums, self._sums = self._sums, None\n        return sums",
        "        return {name: array.copy() for name, array in self._sums.items()}",
        "noise drawn twice",
        "The sum stays after it was privatised, so it can be released again and again: n draws have 1/√n of the noise.",
        ("tests/common/privacy/test_privatise.py::test_noise_is_drawn_once",),
    ),
    Mutant(
        "two-cells-in-one-place",
        COUNTING,
        "    if places.size and not (rising.all() and places[:, 0].min() >= 0 and places[:, -1].max() < width):",
        "    if places.size and not (places[:, 0].min() >= 0 and places[:, -1].max() < width):",
        "clip",
        "Two numbers of a record in one cell add up there: (1/√2 + 1/√2)² = 2, where 1 was counted.",
        (_COUNTING + "test_what_would_break_the_bound_is_refused",),
    ),
    Mutant(
        "counts-forget-the-outer-products",
        COUNTING,
        "Layout((*short, *layout.products)))[0]",
        "Layout(tuple(short)))[0]",
        "clip",
        "One-hot rows are clipped to norm 1 although pairs have a share of it: a record has norm √(1 + "
        "share) together.",
        (_COUNTING + "test_blocks_and_order_leave_no_trace_and_a_record_has_norm_1_at_most",),
    ),
    Mutant(
        "one-hot-rows-are-not-clipped",
        COUNTING,
        """    clipped = clip_to_grid(np.array([row]), np.array([label]), Layout((*short, *layout.products)))[0]
""",
        """    del label
    clipped = np.rint(np.array(row) * 2.0**20)
""",
        "clip",
        "Clip skipped on one path: tables are counted with whatever numbers they have, of any norm.",
        (_COUNTING + "test_it_is_the_sum_of_clipped_contributions",),
    ),
    Mutant(
        "factors-that-do-not-fit-are-added",
        FACTORED,
        "        return (squared <= float(bound) ** 2) & (products <= _LARGEST) & (factors <= _LARGEST_FACTOR)",
        "        return (squared <= 16.0 * float(bound) ** 2) & (products <= _LARGEST) & (factors <= _LARGEST_FACTOR)",
        "clip",
        "What rounding made longer than norm 1 is added all the same: gradients of hostile records weigh more than 1.",
        (_FACTORED + "test_what_is_longer_than_its_bound_adds_nothing",),
    ),
    Mutant(
        "no-cross-term-in-the-norm",
        FACTORED,
        "        squared = ((left * length).square() + 2.0 * left * with_record + mixed).sum(1)",
        "        squared = ((left * length).square() + mixed).sum(1)",
        "clip",
        "|a + b|² is taken for |a|² + |b|²: where a record's own part and that of the basis point the same way, its "
        "gradient has a norm of up to √2.",
        (_FACTORED + "test_parts_that_point_the_same_way_add_up_in_the_norm",),
    ),
    Mutant(
        "a-basis-in-whole-numbers-has-norm-1",
        FACTORED,
        "        stretch = float(torch.linalg.eigvalsh(whole @ whole.T)[-1]) * (1.0 + 1e-9)",
        "        stretch = 4.0**bits",
        "rounding",
        "The basis is rounded to whole numbers and is a little longer than orthonormal; norms that ignore that are too "
        "small, so a contribution may have a norm above 1.",
        (_FACTORED + "test_a_basis_of_few_digits_is_longer_than_1_and_counted_so",),
    ),
    Mutant(
        "norms-ignore-their-own-rounding",
        FACTORED,
        "        return squared.clamp_min(0.0) + rounding, products.amax(1), factors.amax(1)",
        "        return squared.clamp_min(0.0) + 0.0 * rounding, products.amax(1), factors.amax(1)",
        "rounding",
        "A norm of terms that cancel is computed with an error of the terms' size: what the float says "
        "is 1 may be more.",
        (_FACTORED + "test_a_norm_that_cancels_is_not_believed_beyond_its_rounding",),
    ),
    Mutant(
        "gradient-and-marginals-both-have-norm-1",
        FACTORED,
        "    return FIXED_POINT_ONE if segment.factors is None else factor_bound(segment) ** 2",
        "    return FIXED_POINT_ONE",
        "clip",
        "The gradient is clipped to 1 beside a row that has its own share of norm: more than 1 together.",
        (_FACTORED + "test_with_rows_beside_both_parts_together_have_norm_1",),
    ),
    Mutant(
        "rows-beside-gradients-are-not-clipped",
        FACTORED,
        "            self._add_rows(clip_to_grid(rows, labels, self.layout).astype(np.float64), labels)",
        "            self._add_rows(np.trunc(np.nan_to_num(rows).astype(np.float64) * FIXED_POINT_ONE), labels)",
        "clip",
        "Clip skipped on one path: what is released beside gradients has whatever norm its rows have.",
        (_FACTORED + "test_with_rows_beside_both_parts_together_have_norm_1",),
    ),
    Mutant(
        "a-member-is-added-twice-in-factors",
        FACTORED,
        "        self._not_added[added] = False\n        if self._together",
        "        if self._together",
        "sampling",
        "A member can be added again and again: a sensitivity of 2, 3, ... for one record.",
        (_FACTORED + "test_only_members_are_added_each_once_and_nothing_after_the_noise",),
    ),
    Mutant(
        "outsiders-are-added-to-a-sample",
        SAMPLING,
        "        if added.sum() != len(members) or (added & ~self._not_added).any():",
        "        if added.sum() != len(members):",
        "sampling",
        "Records that were not sampled are added: the amplification that the accountant counts on did not happen.",
        (_SAMPLING + "test_only_members_are_added_and_each_once",),
    ),
    Mutant(
        "fixed-batches-accounted-as-poisson",
        SAMPLING,
        "        self._not_added[poisson_sample(records, rate, entropy)] = True",
        '        order = np.argsort(np.frombuffer(entropy.take(8 * records), dtype="<u8"))\n'
        "        self._not_added[order[: math.ceil(rate * records)]] = True",
        "sampling",
        "Batches of a fixed size have another privacy curve than Poisson samples (a record that comes pushes another "
        "out, so the sum moves by 2), and the batch's size tells how many records there are.",
        (_SAMPLING + "test_membership_is_bernoulli_and_independent",),
    ),
    Mutant(
        "sampled-more-often-than-stated",
        SAMPLING,
        "    return np.flatnonzero(words < np.uint64(math.floor(math.ldexp(rate, 64)))).astype(np.int64)",
        "    return np.flatnonzero(words < np.uint64(math.floor(math.ldexp(min(1.0005 * rate, 0.9999), "
        "64)))).astype(np.int64)",
        "sampling",
        "The true rate is a two-thousandth above the one that is accounted for: less amplification than claimed.",
        (_SAMPLING + "test_the_rate_is_met_to_the_last_bit",),
    ),
    Mutant(
        "a-rate-rounded-up",
        SAMPLING,
        '    words = np.frombuffer(entropy.take(8 * records), dtype="<u8")\n'
        "    return np.flatnonzero(words < np.uint64(math.floor(math.ldexp(rate, 64)))).astype(np.int64)",
        '    words = np.frombuffer(entropy.take(records), dtype="u1")\n'
        "    return np.flatnonzero(words < math.ceil(rate * 256)).astype(np.int64)",
        "sampling",
        "One random byte decides, so a rate of 0.001 becomes 1/256, four times what is accounted for.",
        (_SAMPLING + "test_the_rate_is_right_and_others_are_rejected",),
    ),
    Mutant(
        "sample-from-a-public-seed",
        SAMPLING,
        "        self._not_added[poisson_sample(records, rate, entropy)] = True",
        "        from dpdd.common.privacy.entropy import SeededEntropy\n\n"
        "        self._not_added[poisson_sample(records, rate, SeededEntropy(records))] = True",
        "seed",
        "Whoever can repeat the sample knows who is in it: amplification by sampling needs a secret sample.",
        (_SAMPLING + "test_membership_is_bernoulli_and_independent",),
    ),
    Mutant(
        "a-seeded-sample-is-releasable",
        SAMPLING,
        "        self.releasable = entropy.releasable  # who",
        "        self.releasable = True  # who",
        "seed",
        "A sample that a simulation's seed decided passes for a secret one, and its release for one that protects.",
        ("tests/methods/test_noise.py::test_a_sample_from_a_public_seed_is_not_released",),
    ),
    Mutant(
        "neighbours-share-a-draw",
        SAMPLING,
        '    words = np.frombuffer(entropy.take(8 * records), dtype="<u8")\n',
        '    words = np.frombuffer(entropy.take(8 * (records // 2 + 1)), dtype="<u8").repeat(2)[:records]\n',
        "sampling",
        "Two records are in or out together: one record's presence moves with another's, which Poisson "
        "accounting excludes.",
        (_SAMPLING + "test_membership_is_bernoulli_and_independent",),
    ),
    Mutant(
        "a-sum-over-everybody-accounted-as-sampled",
        PRIVATISE,
        """    elif isinstance(event, PoissonGaussian):
        raise ValueError("only a sum that drew its own sample may be accounted for as sampled")
""",
        "",
        "sampling",
        "A sum over all records gets the little noise that is enough for a sample.",
        (_SAMPLING + "test_a_sum_that_drew_no_sample_is_not_accounted_as_sampled",),
    ),
    Mutant(
        "another-rate-than-the-samples",
        PRIVATISE,
        "        if not total.fits(event):",
        "        if not total.fits(event) and not isinstance(event, PoissonGaussian):",
        "sampling",
        "A sample at rate 0.5 is accounted for as one at 0.001.",
        (_SAMPLING + "test_another_event_than_the_sample_is_refused_and_the_sum_stays",),
    ),
    Mutant(
        "members-may-be-left-out",
        PRIVATISE,
        """        if len(total.members):
            raise ValueError("some members of the sample were never added: the sum would be over another sample")
""",
        "",
        "sampling",
        "Whoever adds some members only (say the first n, or one class) releases a sum over another sample than the "
        "Poisson one that is accounted for.",
        (_SAMPLING + "test_nobody_is_forgotten",),
    ),
)
