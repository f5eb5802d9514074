"""Mutants of noise: where it comes from, how wide it is, what it is added to, and what is stated of it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PRIVATISE = "common/privacy/privatise.py"
DISCRETE = "common/privacy/discrete_gaussian.py"
ENTROPY = "common/privacy/entropy.py"
_PRIVATISE = "tests/common/privacy/test_privatise.py::"
_DISCRETE = "tests/common/privacy/test_discrete_gaussian.py::"
_ENTROPY = "tests/common/privacy/test_entropy.py::"
_NOISE = "tests/methods/test_noise.py::"
_ADD = "            array += discrete_gaussian.sample(scale, array.size, entropy).reshape(array.shape)"

NOISE = (
    Mutant(
        "exact-counts",
        PRIVATISE,
        "        for array in sums.values():\n",
        '        for array in [array for name, array in sums.items() if not name.startswith("count")]:\n',
        "noise left out",
        "Class counts leave without noise beside noisy sums: one record more is one count more, seen for sure.",
        (_NOISE + "test_every_segment_has_its_noise[dp-merf]",),
    ),
    Mutant(
        "noise-where-there-are-records",
        PRIVATISE,
        _ADD,
        "            array += discrete_gaussian.sample(scale, array.size, entropy).reshape(array.shape) * (array != 0)",
        "noise left out",
        "Entries that nobody added to stay exactly 0: a record that is the only one of its class shows for sure.",
        (_PRIVATISE + "test_empty_sums_and_empty_classes_are_released_like_any_other",),
    ),
    Mutant(
        "less-noise-for-larger-sums",
        PRIVATISE,
        _ADD,
        "            many = float(np.abs(array).max()) > 50.0 * FIXED_POINT_ONE\n"
        "            drawn = discrete_gaussian.sample(scale, array.size, entropy).reshape(array.shape)\n"
        "            array += np.rint((0.5 if many else 1.0) * drawn).astype(np.int64)",
        "too little noise",
        "Silos with many records get half of the noise: it is too little for them, and its width says "
        "which silos they are.",
        (_PRIVATISE + "test_noise_does_not_depend_on_what_it_is_added_to",),
    ),
    Mutant(
        "one-noise-for-all-segments",
        PRIVATISE,
        "        for array in sums.values():\n" + _ADD,
        "        most = max(array.size for array in sums.values())\n"
        "        drawn = discrete_gaussian.sample(scale, most, entropy)\n"
        "        for array in sums.values():\n"
        "            array += drawn[: array.size].reshape(array.shape)",
        "noise drawn twice",
        "Segments share their noise, so the difference of two segments has none.",
        (_PRIVATISE + "test_every_coordinate_gets_noise_of_the_stated_scale",),
    ),
    Mutant(
        "one-noise-for-all-classes",
        PRIVATISE,
        _ADD,
        "            array += discrete_gaussian.sample(scale, array.shape[1], entropy)",
        "noise drawn twice",
        "All classes' rows carry the same noise: the difference of two classes is exact, and an empty class gives the "
        "noise of all others away.",
        ("tests/methods/test_contract.py::test_mechanism[event-dp-merf]",),
    ),
    Mutant(
        "quantised-before-the-noise",
        PRIVATISE,
        "        for array in sums.values():\n" + _ADD,
        "        for array in sums.values():\n"
        "            step = max(1, int(np.abs(array).max(initial=0)) // 127)\n"
        "            array[:] = np.rint(array / step).astype(np.int64) * step\n" + _ADD,
        "encoding before noise",
        "The clean sum is rounded to a step that depends on the sum: one record can move the step, and with it every "
        "entry by far more than its own contribution.",
        (_PRIVATISE + "test_noise_does_not_depend_on_what_it_is_added_to",),
    ),
    Mutant(
        "clamped-to-what-the-clean-sum-allows",
        PRIVATISE,
        _ADD,
        "            clean = array.copy()\n" + _ADD + "\n"
        "            np.copyto(array, np.abs(array), where=(clean > 0).all())",
        "encoding before noise",
        "Whether the noisy sum is folded depends on the sign of the clean one, which is then read off without noise.",
        (_PRIVATISE + "test_noise_does_not_depend_on_what_it_is_added_to",),
    ),
    Mutant(
        "half-the-noise",
        PRIVATISE,
        "        scale = discrete_gaussian.scale_for(event.sigma * FIXED_POINT_ONE)\n        for",
        "        scale = discrete_gaussian.scale_for(event.sigma * FIXED_POINT_ONE / 2)\n        for",
        "too little noise",
        "Half of the stated noise: (1, 1e-5) is (2.15, 1e-5) in truth.",
        (_NOISE + "test_every_segment_has_its_noise[dp-merf]",),
    ),
    Mutant(
        "a-fiftieth-less-noise",
        PRIVATISE,
        "        scale = discrete_gaussian.scale_for(event.sigma * FIXED_POINT_ONE)\n        for",
        "        scale = discrete_gaussian.scale_for(event.sigma * FIXED_POINT_ONE * 0.98)\n        for",
        "too little noise",
        "2 % less noise than stated: ε is above the promised one, by about as much.",
        (_NOISE + "test_the_width_is_the_stated_one",),
    ),
    Mutant(
        "no-noise-from-system-entropy",
        PRIVATISE,
        "    if isinstance(event, NonPrivate) and entropy.releasable:",
        "    if isinstance(event, NonPrivate) and not entropy.releasable and False:",
        "noise left out",
        "A clean sum can be released with the mark of one that protects.",
        (_PRIVATISE + "test_sums_without_noise_exist_in_simulations_only",),
    ),
    Mutant(
        "seeded-noise-is-releasable",
        PRIVATISE,
        "    releasable = entropy.releasable and not (isinstance(total, SampledSum) and not total.releasable)",
        "    releasable = not (isinstance(total, SampledSum) and not total.releasable)",
        "seed",
        "Noise that a known seed repeats can be taken off, and the release says that it protects.",
        (_PRIVATISE + "test_only_system_entropy_makes_something_releasable",),
    ),
    Mutant(
        "several-releases-on-one-noise",
        PRIVATISE,
        """    if isinstance(event, Gaussian) and event.releases != 1:
        raise ValueError("one sum is one release; compose events to account for several")
""",
        "",
        "accounting",
        "One draw of noise is stated to be several releases (or several are stated for one): event and noise differ.",
        (_PRIVATISE + "test_one_sum_is_one_release",),
    ),
    Mutant(
        "anything-can-be-called-privatised",
        PRIVATISE,
        "        if _made_by is not _ONLY_HERE:",
        "        if _made_by is not _ONLY_HERE and self.event is None:",
        "noise left out",
        "Arrays without noise can be wrapped as if they had been privatised: the one exit is no longer the only one.",
        (_PRIVATISE + "test_a_privatised_value_cannot_be_forged",),
    ),
    Mutant(
        "a-combination-costs-its-first-piece",
        PRIVATISE,
        "        compose(*(piece.event for piece in pieces)),",
        "        compose(pieces[0].event),",
        "composition",
        "Several sums over the same records are released and one is stated.",
        (_PRIVATISE + "test_combining_adds_up_what_the_pieces_cost",),
    ),
    Mutant(
        "a-combination-is-as-near-to-ideal-as-its-best-piece",
        PRIVATISE,
        "        math.fsum(piece.distance for piece in pieces),",
        "        min((piece.distance for piece in pieces), default=0.0),",
        "delta",
        "Statistical distances to ideal noise add up; the least of them is not what comes off δ.",
        (_PRIVATISE + "test_combining_adds_up_what_the_pieces_cost",),
    ),
    Mutant(
        "one-coordinates-distance-for-all",
        PRIVATISE,
        "    return layout.coordinates * discrete_gaussian.distance(scale)",
        "    return discrete_gaussian.distance(scale)",
        "delta",
        "Each coordinate's noise is a little off the ideal; the vector is off by the sum, which δ has to pay for.",
        (_PRIVATISE + "test_the_distance_of_a_release_covers_all_its_coordinates",),
    ),
    Mutant(
        "post-processing-is-perfect",
        PRIVATISE,
        "        return Privatised(dict(function(self.arrays)), self.event, self.distance, "
        "self.releasable, _ONLY_HERE)",
        "        return Privatised(dict(function(self.arrays)), self.event, 0.0, True, _ONLY_HERE)",
        "delta",
        "What was made of noisy sums keeps their distance to ideal noise and their seed; here both are forgotten.",
        (_PRIVATISE + "test_post_processing_keeps_what_it_cost",),
    ),
    Mutant(
        "no-twelfth",
        DISCRETE,
        "    return math.nextafter(math.sqrt(sigma * sigma + 1.0 / 12.0), math.inf)",
        "    return sigma",
        "too little noise",
        "Discrete noise of scale s is as private as continuous noise of variance s² - 1/12, so s = σ is a little less "
        "than σ: the proof no longer covers it.",
        (_DISCRETE + "test_the_discrete_scale_covers_the_twelfth_that_rounding_costs",),
    ),
    Mutant(
        "wide-noise-on-a-coarse-grid",
        DISCRETE,
        "    return _draw(wide, count, entropy) * factor + _draw(narrow, count, entropy)",
        "    return _draw(wide, count, entropy) * factor",
        "too little noise",
        "The noise is always a multiple of k, so the sum modulo k leaves without any noise, although the variance is "
        "right to one part in a thousand.",
        (_DISCRETE + "test_no_residue_is_preferred",),
    ),
    Mutant(
        "noise-cut-off-at-four-sigma",
        DISCRETE,
        "_TAIL = 13.5  # beyond",
        "_TAIL = 4.0  # beyond",
        "delta",
        "Noise of bounded support gives a neighbour away wherever the other's release cannot be: δ is 6e-5 at least.",
        (
            _DISCRETE + "test_tables_hold_the_exact_probabilities",
            _DISCRETE + "test_draws_by_convolution_fit_the_definition",
        ),
    ),
    Mutant(
        "noise-from-floating-point",
        DISCRETE,
        "        part[:] = _draw(scale, len(part), entropy)",
        '        seed = int.from_bytes(entropy.take(4), "little")\n'
        "        part[:] = np.rint(np.random.Generator(np.random.PCG64(seed)).normal(0.0, scale, len(part)))",
        "seed",
        "2^32 seeds of a generator that is not cryptographic: whoever knows one record's part of the "
        "sum tries them all.",
        (_DISCRETE + "test_ties_are_settled_by_the_other_64_bits",),
    ),
    Mutant(
        "noise-repeats-after-a-batch",
        DISCRETE,
        "    out = np.empty(count, dtype=np.int64)\n",
        "    out = np.empty(count, dtype=np.int64)\n"
        "    if count > _BATCH:\n"
        "        return np.resize(_draw(scale, _BATCH, entropy), count)\n",
        "noise drawn twice",
        "Beyond 65,536 coordinates the noise repeats, and differences of such coordinates have none.",
        (_DISCRETE + "test_coordinates_and_calls_are_independent",),
    ),
    Mutant(
        "ties-are-left-to-chance-of-nothing",
        DISCRETE,
        '                low = int.from_bytes(entropy.take(8), "little")',
        "                low = 0",
        "delta",
        "Probabilities are held to 64 bits instead of 128: the distance that is taken off δ is 2^60 times too small.",
        (_DISCRETE + "test_ties_are_settled_by_the_other_64_bits",),
    ),
    Mutant(
        "one-key-for-all-noise",
        ENTROPY,
        "        return _stream(os.urandom(32), os.urandom(16)).update(bytes(count))",
        "        global _KEY\n"
        '        _KEY = globals().get("_KEY") or os.urandom(32)\n'
        "        return _stream(_KEY, bytes(16)).update(bytes(count))",
        "seed",
        "Every release of a process carries the same noise: the difference of two has none at all.",
        ("tests/methods/test_contract.py::test_mechanism[fresh_noise-dp-merf]",),
    ),
    Mutant(
        "a-key-of-32-bits",
        ENTROPY,
        "        return _stream(os.urandom(32), os.urandom(16)).update(bytes(count))",
        "        return _stream(os.urandom(4) * 8, bytes(16)).update(bytes(count))",
        "seed",
        "Noise looks perfect and comes from one of 2^32 streams, which anybody can try.",
        (_ENTROPY + "test_each_call_has_a_whole_key_of_the_systems",),
    ),
    Mutant(
        "a-key-from-pythons-generator",
        ENTROPY,
        "        return _stream(os.urandom(32), os.urandom(16)).update(bytes(count))",
        "        import random\n\n"
        "        return _stream(random.randbytes(32), random.randbytes(16)).update(bytes(count))",
        "seed",
        "Mersenne Twister's state follows from what it gave; a forked worker even has its parent's.",
        (_ENTROPY + "test_each_call_has_a_whole_key_of_the_systems",),
    ),
    Mutant(
        "a-clock-for-a-key",
        ENTROPY,
        "        return _stream(os.urandom(32), os.urandom(16)).update(bytes(count))",
        "        import time\n\n"
        "        key = hashlib.sha256(str(time.time_ns()).encode()).digest()\n"
        "        return _stream(key, bytes(16)).update(bytes(count))",
        "seed",
        "When a release was made is known to a second, which leaves 30 bits to guess.",
        (_ENTROPY + "test_each_call_has_a_whole_key_of_the_systems",),
    ),
)
