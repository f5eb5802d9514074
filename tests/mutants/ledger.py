"""Mutants of the ledger and of what guards it: a budget that is spent twice, forgotten, or given back."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

LEDGER = "client/ledger/ledger.py"
FILE = "client/ledger/ledger_file.py"
LOOKUP = "client/ledger/lookup.py"
CHECKPOINT = "client/ledger/checkpoint.py"
RECOVERY = "client/ledger/recovery.py"
ANCHOR = "client/anchor.py"
CONTINUITY = "client/continuity.py"
SILO = "client/silo.py"
_LEDGER = "tests/client/ledger/test_ledger.py::"
_CHECKPOINT = "tests/client/ledger/test_checkpoint.py::"
_STAGES = "tests/client/test_stages.py::"
_RESTORED = "tests/attacks/test_restored_ledgers.py::"
_CONTINUITY = "tests/attacks/test_budget_continuity.py::"
_SILO = "tests/client/test_silo.py::"

LEDGERS = (
    Mutant(
        "one-payment-for-every-request",
        LOOKUP,
        "        return self._one(f\"request_id = ? AND {_EACH} AND kind = 'reserve'\", request_id) or self._one(",
        "        return self._one(\"kind = 'reserve' ORDER BY seq LIMIT 1\") or self._one(",
        "ledger",
        "Whatever was reserved first pays for all later requests: the budget is never used up.",
        (_LEDGER + "test_releases_fit_until_the_budget_is_used_up_and_the_error_gives_the_figures",),
    ),
    Mutant(
        "reserved-without-a-judgement",
        LEDGER,
        "            if not decision.fits and not (unprotected_allowed and math.isinf(guarantee.epsilon)):",
        "            if not decision.fits and math.isinf(guarantee.epsilon) and not unprotected_allowed:",
        "ledger",
        "A request that does not fit is reserved and answered: the silo's (ε, δ) does not hold any more.",
        (_LEDGER + "test_releases_fit_until_the_budget_is_used_up_and_the_error_gives_the_figures",),
    ),
    Mutant(
        "an-answer-that-failed-gets-its-budget-back",
        LEDGER,
        "        return now.spent if now.budget == self._budget else "
        "checkpoints.summed(self.entries(), self._budget).spent",
        "        entries = self.entries()\n"
        '        done = {entry.request_id for entry in entries if entry.kind == "commit"}\n'
        '        kept = [entry for entry in entries if entry.kind != "reserve" or entry.request_id in done]\n'
        "        return checkpoints.summed(kept, self._budget).spent",
        "ledger",
        "That a worker met a limit depends on the records; each such bit has to cost a reservation, and here is free. "
        "After a crash a release may have left that nothing paid for.",
        (_LEDGER + "test_releases_fit_until_the_budget_is_used_up_and_the_error_gives_the_figures",),
    ),
    Mutant(
        "records-are-read-before-the-budget-is-set-aside",
        SILO,
        "        paid = self._reserve(ledger, request, plan, of)\n",
        "        self._unsigned(\n"
        '            Assignment(self.folder, self.settings, request, plan, "0" * 64, self._holdout_key()), progress\n'
        "        )\n"
        "        paid = self._reserve(ledger, request, plan, of)\n",
        "ledger",
        "An answer that fails on the records, or that does not fit into the budget, costs nothing: "
        "failing can be asked "
        "for as often as one likes.",
        (_SILO + "test_refusals_are_typed_cost_nothing_and_read_no_record",),
    ),
    Mutant(
        "another-release-for-one-request",
        LEDGER,
        '            if known.body["release_sha256"] != release_sha256:\n'
        '                raise LedgerError(f"request {request_id[:12]} was answered by another release already")\n',
        "",
        "noise drawn twice",
        "A release that is gone from the outbox is made again with fresh noise over the same records: two draws, one "
        "payment.",
        (_SILO + "test_a_lost_or_altered_outbox_file_is_never_made_again",),
        (
            Edit(
                SILO,
                "        if kept is None:\n            raise LedgerError(\n"
                '                f"request {request_id[:12]} was answered, but its release is gone '
                'from the outbox; restore "\n'
                '                f"{request_id}.release from a backup: it is never made a second time"\n'
                "            )\n",
                "        if kept is None:\n            return None\n",
            ),
        ),
    ),
    Mutant(
        "a-file-in-the-outbox-is-replaced",
        "client/durable.py",
        "            os.link(partial, path)  # unlike rename, this never replaces a file",
        "            os.replace(partial, path)",
        "noise drawn twice",
        "A second answer to one request takes the first one's place in the outbox, and leaves: noise was drawn twice.",
        ("tests/client/test_outbox.py::test_the_first_release_stays",),
    ),
    Mutant(
        "a-stage-is-answered-twice",
        LOOKUP,
        '            raise NotCovered(f"stage {stage} of this run was answered for another input '
        'already; it is answered once")',
        "            return None",
        "composition",
        "One stage is answered for any number of inputs, each with noise of its own, and one was reserved.",
        (_STAGES + "test_a_stage_is_answered_for_one_input_only_and_always_with_the_same_bytes",),
        (
            Edit(
                "client/ledger/schema.py",
                '    "CREATE UNIQUE INDEX IF NOT EXISTS once ON entries',
                '    "CREATE INDEX IF NOT EXISTS once ON entries',
            ),
        ),
    ),
    Mutant(
        "a-stage-of-another-price",
        LOOKUP,
        '        if not 1 <= stage < reserved.body.get("stages", 1) or spending_of(reserved) != spending:',
        '        if not 1 <= stage < reserved.body.get("stages", 1):',
        "composition",
        "A later stage may have other noise than was reserved, so the stages together cost more than was paid.",
        (_STAGES + "test_a_stage_that_would_cost_other_than_was_reserved_is_refused",),
    ),
    Mutant(
        "more-stages-than-were-reserved",
        LOOKUP,
        '        if not 1 <= stage < reserved.body.get("stages", 1) or spending_of(reserved) != spending:',
        "        if spending_of(reserved) != spending:",
        "composition",
        "The ledger gives away stages beyond those that were paid for.",
        (_STAGES + "test_there_are_as_many_stages_as_were_reserved",),
    ),
    Mutant(
        "a-stage-pays-for-itself-alone",
        "client/stages.py",
        "    if plan.whole is None or plan.whole_distance is None:",
        "    if plan.event is not None:",
        "composition",
        "Stage 0 reserves its own event, and the later stages are covered by it.",
        (_STAGES + "test_stage_0_pays_for_all_and_the_others_spend_nothing",),
    ),
    Mutant(
        "a-finished-set-states-one-stage",
        "client/local_synthesis.py",
        "    return combine(*(numbered(answer, stage) for stage, (_, answer) in "
        "enumerate(answered))).post_process(synthesise)",
        "    return combine(numbered(answered[0][1], 0)).post_process(synthesise)",
        "composition",
        "A set that was made of all stages has the event of the first.",
        (_STAGES + "test_a_distilled_set_runs_all_stages_and_has_the_event_of_the_whole",),
    ),
    Mutant(
        "another-event-than-was-paid",
        "client/answering.py",
        "        if release.event != self.plan.event or release.distance > self.plan.distance:",
        "        if release.distance > self.plan.distance:",
        "ledger",
        "A mechanism may run another event than was reserved (another rate with the same noise, say), "
        "and the release is "
        "signed and leaves.",
        (_SILO + "test_a_mechanism_that_runs_another_event_than_planned_releases_nothing",),
    ),
    Mutant(
        "an-array-more-than-was-planned",
        "client/answering.py",
        "        if release.arrays.keys() != planned.keys() or not all(\n"
        "            _fits(array, planned[name]) for name, array in release.arrays.items()\n        ):",
        "        if not all(\n            _fits(release.arrays[name], planned[name]) for name in planned\n        ):",
        "promise",
        "A worker may send further arrays beside the noisy sums, and the node signs them.",
        ("tests/client/worker/test_worker.py::test_a_worker_that_lies_is_not_believed",),
    ),
    Mutant(
        "the-seed-is-not-asked-for",
        "client/answering.py",
        "        if self.entropy().releasable and not release.releasable:",
        "        if False and not release.releasable:",
        "seed",
        "A silo of real people releases what was drawn from a seed that others know.",
        ("tests/methods/test_noise.py::test_a_sample_from_a_public_seed_is_not_released",),
    ),
    Mutant(
        "the-ledgers-chain-is-not-verified",
        "client/ledger/hash_chain.py",
        "        if entry.previous != previous:",
        "        if entry.previous != previous and seq < 0:",
        "ledger",
        "Entries of this silo can be left out and others put in their place: what was spent is forgotten.",
        (_LEDGER + "test_every_entry_names_the_one_before",),
    ),
    Mutant(
        "anybody-writes-the-checkpoint",
        CHECKPOINT,
        "    try:\n        key.verify(row[1], _PREFIX + _digest(row[0]))\n    except InvalidSignature:\n"
        "        raise LedgerError(\"the ledger's checkpoint is not signed by this silo's key: it was "
        'tampered with") from None\n',
        "",
        "ledger",
        "Decisions go by the checkpoint: whoever writes the file says how much was spent.",
        (_CHECKPOINT + "test_a_checkpoint_with_other_figures_is_found",),
    ),
    Mutant(
        "power-may-fail",
        FILE,
        '                self._db.execute("PRAGMA synchronous = EXTRA")\n',
        '                self._db.execute("PRAGMA synchronous = OFF")\n',
        "ledger",
        "A power cut after a release has left may take its reservation with it, and the budget is spent again.",
        (_LEDGER + "test_an_entry_is_on_disk_before_anything_is_released",),
    ),
    Mutant(
        "a-lost-ledger-is-made-anew",
        SILO,
        "        if not path.exists():\n            raise LedgerError(",
        "        if not path.exists():\n"
        "            self.create_ledger(path)\n"
        "        if not path.exists():\n"
        "            raise LedgerError(",
        "ledger",
        "Whoever deletes the ledger has the whole budget again.",
        (_CONTINUITY + "test_a_deleted_ledger_and_init_give_no_fresh_budget",),
    ),
    Mutant(
        "init-makes-another-ledger",
        CONTINUITY,
        "    found = [what for what, pattern in _TRACES.items() if any(state.glob(pattern))]\n",
        "    found: list[str] = []\n",
        "ledger",
        "`init` in the folder of a silo that has released starts its budget over.",
        (_CONTINUITY + "test_any_trace_of_a_silo_keeps_init_from_making_another_ledger",),
        (Edit(CONTINUITY, "    if (state / KEY).exists():\n        return\n    key, ledger", "    key, ledger"),),
    ),
    Mutant(
        "an-old-ledger-beside-newer-releases",
        CONTINUITY,
        '    raise LedgerBehind(own, f"what this silo released: for the release of {unpaid[0][:12]} in '
        'the outbox, say,")',
        "    return",
        "ledger",
        "A ledger from a backup, older than the releases in the outbox, goes on as if they had cost nothing.",
        (_CONTINUITY + "test_an_old_ledger_that_was_restored_answers_nothing",),
        (
            Edit(
                ANCHOR,
                "        if known is not None and not ledger.holds(known.position):\n            raise behind(",
                "        if known is not None and known.position.sequence < 0:\n            raise behind(",
            ),
        ),
    ),
    Mutant(
        "the-anchor-is-not-asked",
        ANCHOR,
        "        if known is not None and not ledger.holds(known.position):\n            raise behind(",
        "        if known is not None and known.position.sequence < 0:\n            raise behind(",
        "ledger",
        "Old ledger and old outbox together are an old budget, which nothing else in the silo can tell.",
        (_RESTORED + "test_an_old_ledger_with_an_old_outbox_is_shown_by_the_anchor",),
    ),
    Mutant(
        "the-anchor-stays-behind",
        FILE,
        "        if self._anchor is not None and self._db.total_changes != changes:\n"
        "            self._anchor.follow(self)",
        "        if self._anchor is not None and self._db.total_changes < changes:\n"
        "            self._anchor.follow(self)",
        "ledger",
        "Releases leave before the anchor knows of what they cost, so an old ledger passes for the newest.",
        (_RESTORED + "test_an_old_ledger_with_an_old_outbox_is_shown_by_the_anchor",),
    ),
    Mutant(
        "the-anchor-forgets",
        ANCHOR,
        "                elif known.position.sequence >= head.sequence or not ledger.holds(known.position):\n"
        "                    return\n",
        "",
        "ledger",
        "An old ledger that is opened once moves the anchor back to where it ends.",
        (_RESTORED + "test_an_anchor_does_not_follow_a_ledger_that_is_behind_it",),
    ),
    Mutant(
        "what-the-coordinator-showed-is-forgotten",
        SILO,
        "        self.coordinator_memory.check(ledger)\n",
        "",
        "ledger",
        "Everything in the silo was restored from one backup; only the coordinator's release tells, and is not asked.",
        (_RESTORED + "test_what_a_coordinator_showed_once_stops_an_older_ledger_for_good",),
    ),
    Mutant(
        "a-second-release-is-recovered-for-free",
        RECOVERY,
        '            self._append("recovered", found.sha256, {**self._reservation(found, entry), "second": True})\n',
        "",
        "ledger",
        "Two releases for one request mean that noise was drawn twice; a recovery that finds both has to pay for both.",
        (_RESTORED + "test_a_second_release_for_one_request_is_paid_for_a_second_time",),
    ),
    Mutant(
        "a-stage-is-recovered-for-its-own-price",
        RECOVERY,
        '            "event": events.to_json(payment.event),\n            "distance": payment.distance,',
        '            "event": events.to_json(release.event),\n            "distance": release.distance,',
        "ledger",
        "All stages were reserved together and may all have left; the rebuilt ledger counts one of them.",
        (_RESTORED + "test_stages_are_rebuilt_and_none_is_released_for_another_input",),
    ),
    Mutant(
        "nothing-is-ever-missing",
        RECOVERY,
        "        return max(counted - (len(self._roots) - self._extra), 0)",
        "        return 0",
        "ledger",
        "Releases that nobody has any more were paid for by nobody after a recovery: the budget is larger than before.",
        (_RESTORED + "test_what_nobody_can_rebuild_is_counted_and_closes_the_budget_only_when_the_operator_says_so",),
    ),
    Mutant(
        "made-again-after-a-recovery",
        LEDGER,
        "        if paid.seq <= now.rebuilt_at and self._lookup.commit(request_id) is None:",
        "        if paid.seq < 0 and self._lookup.commit(request_id) is None:",
        "noise drawn twice",
        "A release may have left before the loss; making it again is a second draw of noise for one payment.",
        (_CHECKPOINT + "test_no_noise_is_drawn_for_what_was_paid_before_a_recovery",),
    ),
    Mutant(
        "another-holdout-later",
        LEDGER,
        "            if before != declared:",
        '            if before != declared and before == "":',
        "promise",
        "Records change sides: an evaluation reads, as held out, what an earlier release has read.",
        ("tests/client/test_holdout.py::test_another_share_after_the_first_release_is_refused",),
    ),
    Mutant(
        "another-filter-by-editing-the-budget",
        LEDGER,
        "        if spent and mode_for(checkpoints.recorded_budget(entries), spent) != mode_for(budget, spent):",
        "        if spent and spent.distance < 0.0:",
        "filter",
        "The filter is chosen again after releases were seen, and the new one forgets what the old one counted.",
        (_LEDGER + "test_a_new_budget_cannot_change_the_filter_after_a_release",),
    ),
    Mutant(
        "tried-for-ever",
        "client/worker/deaths.py",
        "        if len(mine) >= MOST_DEATHS:",
        "        if len(mine) >= 1 << 40:",
        "leak by failing",
        "Whether a worker meets a limit depends on the records; one payment buys as many tries as one likes, under "
        "whatever load the coordinator makes.",
        ("tests/attacks/test_worker.py::test_a_request_that_always_dies_is_not_tried_for_ever",),
    ),
)
