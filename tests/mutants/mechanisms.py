"""Mutants of the private halves: what of the records reaches a release past the noisy sums."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

BASE = "client/mechanisms/base.py"
MATCHING = "client/mechanisms/matching.py"
DP_GENG = "client/mechanisms/dp_geng.py"
_CONTRACT = "tests/methods/test_contract.py::test_mechanism"
_FRESH = "tests/methods/test_noise.py::test_every_sum_has_a_sample_of_its_own"

MECHANISMS = (
    Mutant(
        "every-record-twice",
        BASE,
        "        done += kept\n",
        "        total.add(rows[:kept], labels, {name: _first(pair, kept) for name, pair in factors.items()})\n"
        "        done += kept\n",
        "sensitivity",
        "Each record is added twice, so the sum's sensitivity is 2.",
        (_CONTRACT + "[neighbours-dp-merf]",),
    ),
    Mutant(
        "batches-of-any-size",
        BASE,
        "        rows, factors = contributions(*padded(features, labels, batch))\n        total",
        "        rows, factors = contributions(features, labels)\n        total",
        "sensitivity",
        "Matrix products round differently by the size of a batch: one record more changes the last bits of others'.",
        ("tests/client/mechanisms/test_base.py::test_every_batch_has_the_same_shape",),
    ),
    Mutant(
        "any-place-in-a-batch-will-do",
        BASE,
        "    return all(np.array_equal(one, np.roll(other, -1, axis=0), equal_nan=True) for one, other in pairs)",
        "    return bool(pairs)",
        "sensitivity",
        "A record's contribution depends on its place in the batch, which a record before it moves.",
        ("tests/client/mechanisms/test_matching.py::test_where_the_place_in_a_batch_matters_records_come_one_by_one",),
    ),
    Mutant(
        "width-from-private-data",
        "client/mechanisms/dp_merf.py",
        "        omega, sums = frequencies(settings, run), layout(settings, run)\n",
        "        omega, sums = frequencies(settings, run), layout(settings, run)\n"
        "        if len(records):\n"
        "            omega = omega / float(1e-3 + np.nanstd(records.read(slice(0, 1000))))\n",
        "private normalisation",
        "The kernel's width is that of the records, as in the paper: one record changes what all others add.",
        (_CONTRACT + "[neighbours-dp-merf]",),
    ),
    Mutant(
        "centred-on-the-private-mean",
        "client/mechanisms/sps.py",
        "                return spec.look(torch.from_numpy(images)).numpy()",
        "                mean = torch.from_numpy(records.read(slice(0, 4096)).mean(axis=0))\n"
        "                return spec.look(torch.from_numpy(images) - mean).numpy()",
        "private normalisation",
        "The mean image is taken off every image: one record moves it, and with it everybody's statistics.",
        (_CONTRACT + "[neighbours-sps]",),
    ),
    Mutant(
        "a-private-grey-level",
        "client/mechanisms/dp_cda.py",
        "        contributions, sums = _contributions(settings, run), mixture_layout(settings, run)\n",
        "        if len(records):\n"
        "            grey = float(np.clip(np.nanmean(records.read(slice(0, 1000))), 0.0, 1.0))\n"
        '            settings = settings.model_copy(update={"centre": grey})\n'
        "        contributions, sums = _contributions(settings, run), mixture_layout(settings, run)\n",
        "private normalisation",
        "The grey level that is taken off is the records' own mean, which one record moves.",
        (_CONTRACT + "[split_and_order-dp-cda]",),
    ),
    Mutant(
        "bytes-scaled-by-the-brightest",
        "common/data/labelled_records.py",
        "        values /= np.float32(255)",
        "        values /= np.float32(max(float(values.max(initial=0.0)), 1.0))",
        "private normalisation",
        "Images are scaled by the brightest pixel of their batch: a bright record darkens its neighbours.",
        ("tests/client/records/test_records.py::test_bytes_are_read_by_a_public_scale",),
    ),
    Mutant(
        "exact-counts-beside-noisy-sums",
        "client/mechanisms/sps.py",
        "        return privatised_sum(records, spec.layout, contributions, plan, "
        "entropy, progress, embedding=embedding)",
        "        counts = np.bincount(records.labels, minlength=len(request.classes))[:, None]\n"
        "        weighed = np.rint(settings.count_weight * counts * 2.0**20).astype(np.int64)\n"
        "        noisy = privatised_sum(records, spec.layout, contributions, plan, "
        "entropy, progress, embedding=embedding)\n"
        '        return noisy.post_process(lambda arrays: {**arrays, "count": weighed})',
        "noise left out",
        "Class counts are put into the release after the noise, which is no post-processing: they come from records.",
        (_CONTRACT + "[no_side_channel-sps]",),
    ),
    Mutant(
        "means-by-the-exact-number-of-records",
        "client/mechanisms/private_evolution.py",
        "    return privatised_sum(records, sums, contributions, plan, entropy, progress, batch=BATCH, embedding=kept)",
        "    noisy = privatised_sum(records, sums, contributions, plan, entropy, progress, "
        "batch=BATCH, embedding=kept)\n"
        "    return noisy.post_process(\n"
        "        lambda arrays: {name: array // max(len(records) // 4, 1) for name, array in arrays.items()}\n"
        "    )",
        "realised size",
        "Noisy votes are divided by the number of records, which the width of the noise then tells.",
        (_CONTRACT + "[no_side_channel-private-evolution]",),
    ),
    Mutant(
        "normalised-by-the-realised-batch",
        MATCHING,
        "        add_sample(total, records, contributions, batches[kind])\n"
        "        piece = privatise(total, event, entropy)\n",
        "        size = max(len(total.members), 1)\n"
        "        add_sample(total, records, contributions, batches[kind])\n"
        "        piece = privatise(total, event, entropy).post_process(\n"
        "            lambda arrays, size=size: {name: array // size for name, array in arrays.items()}\n"
        "        )\n",
        "realised size",
        "A draw's noisy sum is divided by the size of its sample, which is private: the noise tells it.",
        (_CONTRACT + "[no_side_channel-ndpdc]",),
    ),
    Mutant(
        "one-sample-for-all-mixtures",
        "client/mechanisms/dp_cda.py",
        "        pieces = []\n        for number in range(settings.mixtures_per_class):\n"
        "            total = SampledSum(sums, settings.rate, len(records), entropy)\n",
        "        pieces = []\n        drawn = entropy.take(8 * len(records))\n\n"
        "        class Again:\n"
        "            releasable = entropy.releasable\n"
        "            take = staticmethod(lambda count: drawn[:count])\n\n"
        "        for number in range(settings.mixtures_per_class):\n"
        "            total = SampledSum(sums, settings.rate, len(records), Again())\n",
        "seed",
        "All mixtures are over one sample: with probability q a record is in each of them, which costs far more than "
        "as many independent samples.",
        (_FRESH + "[dp-cda]",),
    ),
    Mutant(
        "one-sample-for-all-draws",
        MATCHING,
        "    pieces = []\n    for number in range(settings.draws):\n",
        "    pieces = []\n    drawn = entropy.take(8 * len(records))\n\n"
        "    class Again:\n"
        "        releasable = entropy.releasable\n"
        "        take = staticmethod(lambda count: drawn[:count])\n\n"
        "    for number in range(settings.draws):\n",
        "seed",
        "All draws are over one sample, so sampling amplifies once and not in each draw.",
        (_FRESH + "[ndpdc]",),
        (
            Edit(
                MATCHING,
                "        total = SampledSum(sums, settings.rate, len(records), entropy)\n",
                "        total = SampledSum(sums, settings.rate, len(records), Again())\n",
            ),
        ),
    ),
    Mutant(
        "one-sample-for-all-steps",
        DP_GENG,
        "    so_far: Privatised | None = None\n    for step, share in enumerate(counted):\n",
        "    so_far: Privatised | None = None\n    drawn = entropy.take(8 * len(records))\n\n"
        "    class Again:\n"
        "        releasable = entropy.releasable\n"
        "        take = staticmethod(lambda count: drawn[:count])\n\n"
        "    for step, share in enumerate(counted):\n",
        "seed",
        "DP-SGD's steps are over one and the same sample: the accountant counts on a fresh one in each.",
        (_FRESH + "[dp-geng-sampled-expert]",),
        (
            Edit(
                DP_GENG,
                "        total = SampledSum(layout, settings.expert_rate, len(records), entropy)\n",
                "        total = SampledSum(layout, settings.expert_rate, len(records), Again())\n",
            ),
        ),
    ),
    Mutant(
        "everybody-is-in-the-sample",
        MATCHING,
        "        total = SampledSum(sums, settings.rate, len(records), entropy)\n",
        "        total = SampledSum(sums, settings.rate, len(records), entropy)\n        total._not_added[:] = True\n",
        "sampling",
        "All records are added to each draw, and the noise is that of a sample at the rate.",
        (_CONTRACT + "[layout-ndpdc]",),
    ),
    Mutant(
        "the-first-records-are-never-sampled-out",
        "client/mechanisms/dp_kip.py",
        "    total = SampledSum(sums, settings.rate, len(records), entropy)\n",
        "    total = SampledSum(sums, settings.rate, len(records), entropy)\n    total._not_added[:1] = True\n",
        "sampling",
        "The first record of a silo is in every step: it alone has no amplification, and so no such ε.",
        (_FRESH + "[dp-kip-scattering]",),
    ),
    Mutant(
        "the-expert-follows-its-clean-gradient",
        DP_GENG,
        "        noisy = privatise(total, event, entropy)\n"
        "        weights = weights - length * share * in_units(noisy.arrays[GRADIENT])[0]\n",
        "        clean = in_units(total._sums[GRADIENT].copy())[0]\n"
        "        noisy = privatise(total, event, entropy)\n"
        "        weights = weights - length * share * clean\n",
        "adaptivity",
        "The next step's gradients are taken at weights that hang on the clean sum: a record moves all later steps.",
        (_CONTRACT + "[neighbours-dp-geng-adaptive]",),
    ),
    Mutant(
        "models-see-who-else-is-there",
        "client/mechanisms/evaluation.py",
        "            buffer.copy_(torch.from_numpy(record))\n",
        "            buffer.copy_(torch.from_numpy(record - np.nan_to_num(records).mean(axis=0)))\n",
        "private normalisation",
        "Records are shown to the models less the mean of their batch (as BatchNorm would): a record's "
        "answer depends on "
        "who else was read.",
        (_CONTRACT + "[neighbours-evaluation]",),
    ),
    Mutant(
        "a-row-that-is-none-stops-the-answer",
        "client/mechanisms/private_evolution.py",
        "        proper = proper_rows(rows, sizes)\n"
        "        rows, labels = rows[proper], labels[proper]\n"
        "        places",
        "        proper = proper_rows(rows, sizes)\n"
        "        if not proper.all():\n"
        '            raise ValueError("a row is none of the schema")\n'
        "        rows, labels = rows[proper], labels[proper]\n        places",
        "leak by failing",
        "One hostile record makes the silo fail: that it is there is told for the price of a reservation.",
        (_CONTRACT + "[neighbours-private-evolution-table]",),
    ),
    Mutant(
        "a-code-of-another-column",
        "client/mechanisms/column_histograms.py",
        "            proper = proper_rows(rows, sizes)\n",
        "            proper = np.isfinite(rows).all(axis=1) & (rows >= 0).all(axis=1)\n",
        "leak by failing",
        "A code that its column has not is counted in the next column's cells, or stops the answer: "
        "hostile rows choose.",
        (_CONTRACT + "[neighbours-column-histograms-table]",),
    ),
    Mutant(
        "rows-with-nan-count-as-missing",
        "common/data/table/rows.py",
        "        proper: NDArray[np.bool_] = ((rows >= 0) & (rows < np.array(sizes)) & (rows == "
        "np.floor(rows))).all(axis=1)",
        "        proper: NDArray[np.bool_] = ~((rows < 0) | (rows >= np.array(sizes)) | (rows > "
        "np.floor(rows))).any(axis=1)",
        "poisoned record",
        "A row with a NaN passes for one of the schema, and its code is whatever the processor makes "
        "of NaN: outside of "
        "all cells.",
        ("tests/client/mechanisms/test_sps_table.py::test_a_row_with_a_cell_that_is_no_code_adds_nothing",),
    ),
    Mutant(
        "an-error-for-an-empty-silo",
        BASE,
        "    total = ClippedSum(layout)\n\n    def from_records",
        "    total = ClippedSum(layout)\n    if not len(records):\n"
        '        raise ValueError("there are no records")\n\n    def from_records',
        "leak by failing",
        "A silo with no record fails and one with a single record answers: these are neighbours.",
        (_CONTRACT + "[small_silos-dp-merf]",),
    ),
    Mutant(
        "records-stay-on-the-mechanism",
        "client/mechanisms/sps_table.py",
        "        released = marginals(settings, RunDescription.of(request))\n",
        "        released = marginals(settings, RunDescription.of(request))\n        self._records = records\n",
        "promise",
        "Records outlive the release on an object that later requests share: nothing keeps them out of another answer.",
        (_CONTRACT + "[keeps_nothing-sps-table-table]",),
    ),
    Mutant(
        "records-can-be-pickled",
        "client/records/records.py",
        '        raise TypeError("private records are not pickled or copied to another process; load '
        'them where they are used")',
        "        return super().__reduce_ex__(protocol)  # type: ignore[return-value]",
        "promise",
        "Private records travel in whatever is pickled: to other processes, into caches, into crash reports.",
        ("tests/client/records/test_records.py::test_records_are_not_pickled_or_copied",),
    ),
    Mutant(
        "a-fixed-share-is-held-out",
        "client/holdout.py",
        "    aside: NDArray[np.bool_] = digests[:, 0].astype(np.uint64) < np.uint64(limit)\n",
        "    aside: NDArray[np.bool_] = digests[:, 0].argsort().argsort() < round(share * len(records))\n",
        "sensitivity",
        "Exactly so many records are held out, so one record more pushes another to the other side: two change.",
        ("tests/client/test_holdout.py::test_one_record_more_or_less_moves_nobody_else_and_order_does_not_matter",),
    ),
    Mutant(
        "held-out-by-position",
        "client/holdout.py",
        '            digests[done] = np.frombuffer(_digest(feature, int(label), key), dtype="<u8")\n',
        '            digests[done] = np.frombuffer(_digest(feature * 0, done, key), dtype="<u8")\n',
        "sensitivity",
        "The side hangs on a record's place in the file, so one record more deals all later ones anew.",
        ("tests/client/test_holdout.py::test_one_record_more_or_less_moves_nobody_else_and_order_does_not_matter",),
    ),
    Mutant(
        "a-finished-set-of-clean-sums",
        "client/local_synthesis.py",
        "        statistics = _statistics(answered)\n        run =",
        "        statistics = _statistics(_CLEAN or answered)\n        run =",
        "encoding before noise",
        "The silo makes its images of sums without noise, and states the event of the noisy ones beside them.",
        ("tests/client/test_local_synthesis.py::test_a_finished_set_follows_from_the_noisy_sums_alone",),
        (
            Edit(
                "client/local_synthesis.py",
                "    answered: list[tuple[ReleaseRequest, Privatised]] = []\n",
                "    _CLEAN.clear()\n    answered: list[tuple[ReleaseRequest, Privatised]] = []\n",
            ),
            Edit(
                "client/local_synthesis.py",
                "        plan = method.plan(asked, settings)\n",
                "        plan = method.plan(asked, settings)\n"
                '        free = replace(asked, epsilon=float("inf"))\n'
                "        clean = mechanism(method).run(\n"
                "            records, free, settings, method.plan(free, settings), SeededEntropy(1), progress\n"
                "        )\n"
                "        _CLEAN.append((asked, clean))\n",
            ),
            Edit(
                "client/local_synthesis.py",
                "from dpdd.common.privacy.entropy import Entropy\n",
                "from dpdd.common.privacy.entropy import Entropy, SeededEntropy\n",
            ),
            Edit(
                "client/local_synthesis.py",
                "def run_stages(",
                "_CLEAN: list[tuple[ReleaseRequest, Privatised]] = []\n\n\ndef run_stages(",
            ),
        ),
    ),
)
