"""Mutants of what a silo says and lets others ask: refusals, reports, heartbeats, logs, and checks by others."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

SILO = "client/silo.py"
APP = "client/app.py"
NODE = "client/transport/node.py"
POLICY = "client/policy.py"
VERIFICATION = "common/methods/verification.py"
_SILO = "tests/client/test_silo.py::"
_REHEARSAL = "tests/client/test_rehearsal.py::"
_BOUNDED = "tests/attacks/test_bounded_silo.py::"
_VERIFICATION = "tests/common/methods/test_verification.py::"

SILOS = (
    Mutant(
        "too-few-records-is-a-refusal",
        SILO,
        "            stages.check(request, chosen.stages(settings), first_input=chosen.first_stage_input)\n",
        "            stages.check(request, chosen.stages(settings), first_input=chosen.first_stage_input)\n"
        "            from dpdd.client.records import load\n\n"
        "            if len(load(self.settings.data, self.folder)) < 10:\n"
        '                raise Refused(Reason.NOT_ALLOWED, "this silo has too few records")\n',
        "leak by refusing",
        "A refusal is free, and here says whether there are ten records: neighbours are told apart for nothing.",
        (_REHEARSAL + "test_the_report_is_the_same_whatever_the_records_are",),
    ),
    Mutant(
        "an-empty-class-is-a-refusal",
        SILO,
        "                ceilings.check_room(request, plan, self.settings.policy, self.outbox)\n"
        "                if request.stage > 0:",
        "                from dpdd.client.records import load\n\n"
        "                held = set(load(self.settings.data, self.folder).labels.tolist())\n"
        "                if len(held) < len(request.classes):\n"
        '                    raise Refused(Reason.NOT_ALLOWED, "this silo has no record of some class")\n'
        "                ceilings.check_room(request, plan, self.settings.policy, self.outbox)\n"
        "                if request.stage > 0:",
        "leak by refusing",
        "In earnest only, not in a dry round: a class of one record is refused without it.",
        (_SILO + "test_refusals_are_typed_cost_nothing_and_read_no_record",),
    ),
    Mutant(
        "the-dry-round-counts-records",
        "client/rehearsal.py",
        "Cost(plan.guarantee.epsilon, plan.guarantee.delta, plan.bytes))",
        "Cost(plan.guarantee.epsilon, plan.guarantee.delta, plan.bytes + _size(silo)))",
        "leak by refusing",
        "A dry round is free, and its estimate has the size of the silo's data in it.",
        (_REHEARSAL + "test_the_report_is_the_same_whatever_the_records_are",),
        (
            Edit(
                "client/rehearsal.py",
                "def _judge(",
                "def _size(silo: Silo) -> int:\n"
                '    return sum(path.stat().st_size for path in silo.folder.glob("records*"))\n\n\ndef _judge(',
            ),
        ),
    ),
    Mutant(
        "an-error-says-why",
        APP,
        '        return Message(Error(SILO_FAILED, "the silo could not answer; its own log says why"), '
        "reply_to=message)",
        '        return Message(Error(SILO_FAILED, f"the silo could not answer: {error}"), reply_to=message)',
        "leak by failing",
        "The text of an exception may quote a record, and goes to the coordinator.",
        (_BOUNDED + "test_no_exception_carries_its_text_out",),
    ),
    Mutant(
        "an-error-says-what-kind",
        APP,
        '        return Message(Error(SILO_FAILED, "the silo could not answer; its own log says why"), '
        "reply_to=message)",
        "        code = SILO_FAILED + len(type(error).__name__)\n"
        '        return Message(Error(code, "the silo could not answer; its own log says why"), reply_to=message)',
        "leak by failing",
        "Which way a silo failed (out of memory, out of time, a damaged record) depends on the records.",
        (_BOUNDED + "test_no_exception_carries_its_text_out",),
    ),
    Mutant(
        "a-log-that-quotes-records",
        "client/transport/node_log.py",
        '        return f"Traceback (most recent call last):\\n{frames}{type(error).__name__}: '
        '{one_line(sayable(error))}"',
        '        return f"Traceback (most recent call last):\\n{frames}{type(error).__name__}: {one_line(error)}"',
        "promise",
        "What a library says of a record it could not read lies in a log that is sent around when something is wrong.",
        (_BOUNDED + "test_no_exception_carries_its_text_out",),
    ),
    Mutant(
        "a-heartbeat-with-progress",
        NODE,
        "        self._console(what, done, of)\n\n    def _say",
        '        self._console(what, done, of)\n        self._phase = f"{what}, {done} of {of}"\n\n    def _say',
        "leak by heartbeat",
        "How many records were summed so far is told every few seconds, for nothing.",
        (_BOUNDED + "test_a_heartbeat_says_nothing_that_depends_on_the_records",),
        (
            Edit(
                NODE,
                "        return exchange_pb2.Beat(doing=self._doing).SerializeToString()",
                '        return exchange_pb2.Beat(doing=getattr(self, "_phase", self._doing)).SerializeToString()',
            ),
        ),
    ),
    Mutant(
        "counts-are-public-unasked",
        "client/answering.py",
        '            "public_counts": self.settings.public_counts,',
        '            "public_counts": self.settings.public_counts\n'
        "            or tuple(np.bincount(load_records(self.settings.data, self.folder).labels).tolist()),",
        "noise left out",
        "Exact class counts of a silo whose operator declared none go out beside the noisy ones.",
        (_SILO + "test_counts_are_public_only_where_the_operator_typed_them_in",),
        (
            Edit(
                "client/answering.py",
                "from numpy.typing import NDArray\n",
                "import numpy as np\nfrom numpy.typing import NDArray\n",
            ),
        ),
    ),
    Mutant(
        "any-epsilon-at-once",
        POLICY,
        "    if not unprotected and request.epsilon > policy.epsilon_per_request:",
        "    if unprotected and request.epsilon > policy.epsilon_per_request:",
        "policy",
        "One request may take more than the operator allows one request to take.",
        (_SILO + "test_refusals_are_typed_cost_nothing_and_read_no_record",),
    ),
    Mutant(
        "any-delta",
        POLICY,
        "    if request.delta > policy.delta_per_request:",
        "    if request.delta > 1.0:",
        "policy",
        "With δ of 1e-3 a release may name one of a thousand records outright.",
        (_SILO + "test_refusals_are_typed_cost_nothing_and_read_no_record",),
    ),
    Mutant(
        "no-noise-outside-of-simulations",
        POLICY,
        "    if unprotected and not (settings.simulation and settings.simulation.allow_no_noise):",
        "    if unprotected and settings.simulation and not settings.simulation.allow_no_noise:",
        "policy",
        "A coordinator may ask real silos for ε = ∞.",
        (_SILO + "test_refusals_are_typed_cost_nothing_and_read_no_record",),
    ),
    Mutant(
        "epsilon-shaved",
        POLICY,
        "    if request.epsilon < policy.least_epsilon_per_request:",
        "    if request.epsilon < 0.0:",
        "policy",
        "That an answer fails is a bit for the price of a reservation: requests of ε = 1e-9 buy a billion of them.",
        (_BOUNDED + "test_epsilon_shaving_writes_no_ledger_and_plans_nothing",),
    ),
    Mutant(
        "nobody-is-asked",
        SILO,
        "        if decision is None:\n            self._keep_undecided(ledger, request)\n",
        '        if decision is None:\n            return\n        if decision.kind == "":\n',
        "policy",
        "A silo whose operator decides on each request answers before anybody has.",
        (_SILO + "test_asking_waits_for_the_operator",),
    ),
    Mutant(
        "anybodys-request",
        NODE,
        "            if signed:\n                self._answer(",
        "            if signed or request:\n                self._answer(",
        "policy",
        "Requests that the pinned coordinator did not sign spend the budget, and their answers go out.",
        ("tests/client/transport/test_node.py::test_what_the_coordinator_did_not_sign_is_neither_answered_nor_paid",),
    ),
    Mutant(
        "a-core-dump-is-a-copy-of-the-records",
        "client/worker/limits.py",
        "        _limit(resource.RLIMIT_CORE, 0)  # a core would be a copy of the records\n",
        "",
        "promise",
        "A worker that crashes leaves its memory, with the records in it, where others may read it.",
        ("tests/client/worker/test_worker.py::test_a_worker_leaves_no_core",),
    ),
    Mutant(
        "stated-epsilon-is-believed",
        VERIFICATION,
        '    if found.epsilon > most:\n        raise IntegrityError(\n            f"silo {silo} states',
        '    if found.epsilon > 1e9:\n        raise IntegrityError(\n            f"silo {silo} states',
        "accounting",
        "A release whose noise costs ε = 284 is published as one of ε = 1.",
        ("tests/attacks/test_lying_release.py::test_epsilon_understated_is_recomputed_without_the_request",),
    ),
    Mutant(
        "recomputed-without-the-distance",
        VERIFICATION,
        "        left = delta - (1.0 + math.exp(min(assumed, 700.0))) * distance\n",
        "        left = delta\n",
        "delta",
        "ε is recomputed as if the noise were ideal, with all of δ.",
        (_VERIFICATION + "test_epsilon_is_recomputed_with_the_distance_off_delta",),
    ),
    Mutant(
        "one-stage-for-all",
        VERIFICATION,
        "        assumed = found.epsilon + 1.0\n",
        "        return Guarantee(found.epsilon, delta, found.accountant)\n",
        "delta",
        "Too little is taken off δ where ε turns out larger than was assumed: e^ε belongs to the true ε.",
        (_VERIFICATION + "test_epsilon_is_recomputed_with_the_distance_off_delta",),
    ),
    Mutant(
        "a-record-in-two-silos",
        "scenarios/simulator/partition.py",
        "        return np.array_split(order, data.silos)\n",
        "        return np.array_split(np.append(order, order[: len(order) // 10]), data.silos)\n",
        "composition",
        "Some simulated people are in two silos, so they have the composition of both, and the report states one.",
        ("tests/scenarios/simulator/test_partition.py::test_every_record_goes_to_exactly_one_silo_by_the_seed",),
    ),
)
