"""A silo answers requests: policy, ledger, mechanism, outbox, in that order and exactly once.

=========== ============================================== ==========================================
step        what is durable afterwards                     a crash right after it
=========== ============================================== ==========================================
reserve     the budget is set aside                        the next try finds the reservation
run         nothing: records and clean sums are in memory  the next try runs again; nothing had left
outbox      the signed release                             the next try commits and sends that very file
commit      the release's hash                             the next try sends the same bytes
=========== ============================================== ==========================================

Each ledger entry is in the anchor (`dpdd.client.anchor`) before the next step. For a later stage
(`dpdd.client.stages`) the first step is to take it from what stage 0 reserved; the rest is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpdd.client import ceilings, continuity, holdout, policy, stages
from dpdd.client.anchor import Anchor, anchor_path
from dpdd.client.answering import Assignment, make
from dpdd.client.config import SiloSettings, load_settings
from dpdd.client.coordinator_memory import CoordinatorMemory
from dpdd.client.durable import exclusive, write_new
from dpdd.client.estimates import REQUEST_COPIES, memory_bound
from dpdd.client.keys import create_key, load_key, public_bytes
from dpdd.client.ledger.hash_chain import Entry
from dpdd.client.ledger.ledger import Ledger, OverBudget
from dpdd.client.ledger.lookup import NotCovered
from dpdd.client.open_records import OpenRecords
from dpdd.client.outbox import Outbox
from dpdd.client.policy import Refused
from dpdd.client.worker.deaths import Deaths
from dpdd.client.worker.endings import STOPPED, WorkerEnded
from dpdd.client.worker.worker import Planned, PlanTooLong, Worker, limits_of, planning_limits_of
from dpdd.common.config import Settings, one_line
from dpdd.common.errors import ConfigError, IntegrityError, LedgerError, WireError
from dpdd.common.files.private_keys import new_passphrase, refuse_unencrypted
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.registry import query
from dpdd.common.methods.request_plan import is_round, planned, settings_of
from dpdd.common.progress import Progress, silent
from dpdd.common.wire.answer import Answer, Reason, Refusal, Shortfall, SignedReleaseBytes
from dpdd.common.wire.payment import Payment
from dpdd.common.wire.release import Release, open_signed, sign
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request

LOCK_TIMEOUT = 600.0
HOLDOUT_KEY = "holdout.key"
MOST_WAITING = 100
MOST_WAITING_BYTES = 1 << 28


class Silo:
    """The folder with `silo.toml`, and its `state/`: key, ledger, outbox."""

    def __init__(self, folder: Path, worker: Worker | None = None, opened: OpenRecords | None = None) -> None:
        """With a `worker`, records are read and requests planned in a process of its own, unless silo.toml says no.

        Without one, a simulated silo's records stay open in `opened` between stages.
        """
        self.folder = folder
        self.settings: SiloSettings = load_settings(folder)
        self._worker = worker if self.settings.worker.isolation else None
        self._opened = opened
        self._key = load_key(self._state / "key.pem", self.settings.keys.beside(folder))
        self.outbox = Outbox(self._state / "outbox")

    @staticmethod
    def initialise(folder: Path, *, encrypt_key: bool = False) -> Silo:
        """Make key, ledger and outbox for the `silo.toml` in `folder`; the key encrypted, if that is wanted."""
        settings = load_settings(folder)
        state = folder / "state"
        try:
            state.mkdir(mode=0o700, exist_ok=True)
            state.chmod(0o700)
            (state / "outbox").mkdir(exist_ok=True)
            (state / "requests").mkdir(exist_ok=True)
            passphrase_file = settings.keys.beside(folder)

            def new_key(path: Path) -> None:
                create_key(path, new_passphrase(path, passphrase_file) if encrypt_key else None)

            def new_ledger(path: Path, key: Path) -> None:
                Ledger.create(path, settings.name, settings.budget.budget(), load_key(key, passphrase_file))

            if encrypt_key:
                refuse_unencrypted(state / continuity.KEY)
            with exclusive(state / "init.lock", LOCK_TIMEOUT):
                continuity.start(state, new_key, new_ledger)
                if not (state / HOLDOUT_KEY).exists():
                    noise_seed = None if settings.simulation is None else settings.simulation.noise_seed
                    seed = None if noise_seed is None else f"{noise_seed} {settings.name}"
                    holdout.create_key(state / HOLDOUT_KEY, seed)
        except OSError as error:
            raise ConfigError(f"{state}: cannot be made ({error.strerror})") from None
        silo = Silo(folder)
        ledger = silo.ledger()
        try:
            ledger.check_anchor()
            ledger.follow_anchor()
        finally:
            ledger.close()
        return silo

    @property
    def _state(self) -> Path:
        return self.folder / "state"

    @property
    def node_log(self) -> Path:
        """Where `dpdd-client run` writes what it did."""
        return self._state / "node.log"

    @property
    def node_lock(self) -> Path:
        """What `dpdd-client run` holds, so that there is one of it."""
        return self._state / "node.lock"

    @property
    def public_key(self) -> bytes:
        """What verifies this silo's releases."""
        return public_bytes(self._key)

    def ledger(self, **options: Any) -> Ledger:
        """The ledger, opened and verified; the caller closes it."""
        path = self._state / "ledger.sqlite"
        if not path.exists():
            raise LedgerError(
                f"{path}: the ledger is gone; restore it from a backup, since a new one forgets what was spent "
                "(`dpdd-client recover` rebuilds it from releases)"
            )
        return self.open_ledger(path, **options)

    def create_ledger(self, path: Path) -> None:
        """Begin a ledger of this silo at a new path: for a recovery."""
        Ledger.create(path, self.settings.name, self.settings.budget.budget(), self._key)

    def open_ledger(self, path: Path, **options: Any) -> Ledger:
        """A ledger of this silo at any path."""
        with_anchor = {"anchor": self.anchor, **options}
        return Ledger(path, self.settings.name, self.settings.budget.budget(), self._key, **with_anchor)

    @property
    def anchor(self) -> Anchor | None:
        """What remembers the ledger's end outside `state/`; simulated silos have none."""
        if self.settings.simulation is not None:
            return None
        named = self.settings.ledger.anchor
        return Anchor(self.folder / named.expanduser() if named else anchor_path(self.public_key), self._key)

    @property
    def coordinator_memory(self) -> CoordinatorMemory:
        """What the coordinator said of the ledger."""
        return CoordinatorMemory(self._state / "coordinator" / "position.json")

    def plan(self, request: ReleaseRequest) -> tuple[Settings, Plan]:
        """What answering `request` would cost; Refused when the policy or the method's schema says no."""
        policy.check(request, self.settings)
        chosen, shipped = query(request.method), True
        try:
            settings = settings_of(request)
            shipped = policy.check_backbones(chosen.backbones(settings), self.settings)
            policy.check_public_datasets(chosen.public_datasets(settings), request.kind, self.settings)
            stages.check(request, chosen.stages(settings), first_input=chosen.first_stage_input)
            answer = self._planned(request, settings)
            ceilings.check_size(answer.plan, self.settings.policy)
            ceilings.check_machine(answer.plan, answer.memory, self.settings.policy)
            return settings, answer.plan
        except (ConfigError, ValueError) as error:
            why = one_line(error) if shipped else policy.OWN_BACKBONE  # what is in a file here is nobody's business
            raise Refused(Reason.MALFORMED, why) from None

    def _planned(self, request: ReleaseRequest, settings: Settings) -> Planned:
        """The plan, by the worker where there is one: then it takes no longer than the silo gives it."""
        if is_round(request):
            first = request.first_stage()
            query(request.method).check_round(request, settings)
            known, more = self._planned(first, settings), len(request.encode()) - len(first.encode())
            return Planned(known.plan, known.memory + REQUEST_COPIES * more if known.memory else 0)
        if self._worker is None:
            plan = planned(request, settings)
            bounded = self.settings.policy.most_memory is not None
            return Planned(plan, memory_bound(request, settings, plan) if bounded else 0)
        try:
            return self._worker.plan(request, planning_limits_of(self.settings))
        except PlanTooLong:
            raise Refused(Reason.NOT_ALLOWED, "planning the answer takes more than this silo gives a plan") from None

    def answer(self, data: bytes, progress: Progress = silent, waiting: Callable[[], None] = lambda: None) -> Answer:
        """The release for a request, always the same bytes for the same request, or a refusal.

        Raises a DpddError when the silo itself is in trouble (unreadable data, full disk): then nothing has left, and
        the same request may be tried again at no further cost.
        """
        request_id = hashlib.sha256(data).hexdigest()
        try:
            request = decode_request(data)
            ledger = self.ledger()
            try:
                known = self._replay(ledger, request_id)
                if known is not None:
                    return SignedReleaseBytes(known)
                ceilings.check_rate(request, self.settings.policy, ledger)
                settings, plan = self.plan(request)
                ceilings.check_room(request, plan, self.settings.policy, self.outbox)
                if request.stage > 0:
                    ledger.check_stage(request.id, request.first_stage().id, request.stage, stages.reserved(plan))
                self._approved(ledger, request.first_stage())
                with exclusive(self._state / "lock", LOCK_TIMEOUT, waiting):
                    return SignedReleaseBytes(self._release(ledger, request, settings, plan, progress))
            finally:
                ledger.close()
        except WireError as error:
            return self._refuse(request_id, Reason.MALFORMED, str(error))
        except Refused as error:
            return self._refuse(request_id, error.reason, str(error))
        except NotCovered as error:
            return self._refuse(request_id, Reason.NOT_ALLOWED, str(error))
        except OverBudget as error:
            shortfall = Shortfall(error.verdict.requested, error.verdict.remaining)
            return self._refuse(request_id, Reason.OVER_BUDGET, str(error), shortfall)

    def waiting(self) -> list[ReleaseRequest]:
        """The requests that the operator has not decided on."""
        ledger = self.ledger()
        try:
            requests = [
                decode_request(path.read_bytes()) for path in sorted((self._state / "requests").glob("*.request"))
            ]
            return [request for request in requests if ledger.decision(request.id) is None]
        finally:
            ledger.close()

    def _refuse(self, request_id: str, reason: Reason, why: str, shortfall: Shortfall | None = None) -> Refusal:
        return Refusal(request_id, self.settings.name, reason, one_line(why)[:1000], shortfall)

    def _replay(self, ledger: Ledger, request_id: str) -> bytes | None:
        """The finished release for this request, if there is one."""
        committed = ledger.committed(request_id)
        if committed is None:
            return None
        kept = self.outbox.get(request_id)
        if kept is None:
            raise LedgerError(
                f"request {request_id[:12]} was answered, but its release is gone from the outbox; restore "
                f"{request_id}.release from a backup: it is never made a second time"
            )
        if hashlib.sha256(kept).hexdigest() != committed:
            raise IntegrityError(f"the outbox file of request {request_id[:12]} is not the release in the ledger")
        return kept

    def _approved(self, ledger: Ledger, request: ReleaseRequest) -> None:
        """Refused unless the operator allows `request`, a first stage: what holds for it holds for all its stages."""
        if self.settings.policy.approval == "auto":
            return
        decision = ledger.decision(request.id)
        if decision is None:
            self._keep_undecided(ledger, request)
            raise Refused(Reason.AWAITING_APPROVAL, "the silo's operator has not decided on this request yet")
        if decision.kind == "deny":
            raise Refused(Reason.DENIED, f"the silo's operator denied this request: {decision.body['why']}")

    def _keep_undecided(self, ledger: Ledger, request: ReleaseRequest) -> None:
        """Note a request for the operator. A coordinator cannot fill the disk with them."""
        path = self._state / "requests" / f"{request.id}.request"
        if path.exists():
            return
        kept = {old: old.stat().st_size for old in path.parent.glob("*.request")}

        def full() -> bool:
            return len(kept) >= MOST_WAITING or len(request.encode()) + sum(kept.values()) > MOST_WAITING_BYTES

        if full():
            for old in [old for old in kept if ledger.decision(old.stem) is not None]:
                old.unlink(missing_ok=True)
                del kept[old]
        if full():
            raise Refused(Reason.NOT_ALLOWED, "too many requests wait for the silo's operator already")
        write_new(path, request.encode())

    def _release(
        self, ledger: Ledger, request: ReleaseRequest, settings: Settings, plan: Plan, progress: Progress
    ) -> bytes:
        """Make, keep and commit the release; under the silo's lock."""
        compared = continuity.Comparison(self._state / continuity.COMPARED, self.outbox, self._key)
        if not compared.holds(ledger):
            self.outbox.clean()
        self.check_ledger(ledger)
        ledger.follow_anchor()
        known = self._replay(ledger, request.id)
        if known is not None:
            return known
        kept = self.outbox.get(request.id)
        if kept is not None:  # a crash between outbox and commit: this very file answers the request
            reservation = ledger.reservation(request.id)
            release = open_signed(kept, self.public_key)
            if reservation is None or (release.request_id, release.ledger_entry) != (request.id, reservation.hash):
                raise IntegrityError(f"the outbox holds a release for {request.id[:12]} that the ledger never paid for")
        else:
            kept = self._make(ledger, request, settings, plan, progress)
        progress("committing", 0, 1)
        ledger.commit(request.id, hashlib.sha256(kept).hexdigest())
        compared.note(ledger)
        return kept

    def _make(
        self, ledger: Ledger, request: ReleaseRequest, settings: Settings, plan: Plan, progress: Progress
    ) -> bytes:
        progress("reserving", 0, 1)
        ceilings.check_rate(request, self.settings.policy, ledger)  # again, now that nobody else makes a release
        ceilings.check_room(request, plan, self.settings.policy, self.outbox)
        of = 1 if request.kind is Kind.DISTILLED_SET else query(request.method).stages(settings)
        paid = self._reserve(ledger, request, plan, of)
        payment = self._payment(ledger, request, plan, of, paid)
        assignment = Assignment(self.folder, self.settings, request, plan, paid.hash, self._holdout_key(), payment)
        release = self._unsigned(assignment, progress)
        assignment.check(release)
        progress("writing", 0, 1)
        return self.outbox.put(request.id, sign(release, self._key))

    def _unsigned(self, assignment: Assignment, progress: Progress) -> Release:
        """What records and mechanism give, made here or by the worker, which a request ends only so often."""
        if self._worker is None:
            return make(assignment, progress, None if self._opened is None else self._opened.of(assignment, progress))
        deaths, limits, request_id = Deaths(self._state / "deaths"), limits_of(self.settings), assignment.request.id
        deaths.check(request_id, limits)
        try:
            release = self._worker.make(assignment, limits, progress)
        except WorkerEnded as error:
            if error.end != STOPPED:
                deaths.note(request_id, limits, error.end)
            raise
        deaths.forget(request_id)
        return release

    def _reserve(self, ledger: Ledger, request: ReleaseRequest, plan: Plan, of: int) -> Entry:
        """Set budget aside for all the stages (`of` them) that may be asked for, or take a later one of them."""
        spending = stages.reserved(plan)
        if request.stage > 0:
            return ledger.begin_stage(request.id, request.first_stage().id, request.stage, spending)
        return ledger.reserve(
            request.id,
            request.method,
            spending,
            plan.guarantee,
            {"run": request.run, "coordinates": plan.coordinates, **self.declared_holdout()},
            stages=of,
            unprotected_allowed=self.settings.simulation is not None and self.settings.simulation.allow_no_noise,
        )

    def _payment(self, ledger: Ledger, request: ReleaseRequest, plan: Plan, of: int, paid: Entry) -> Payment:
        """What the release says of its ledger entry: what `dpdd-client recover` needs, if the ledger is ever lost."""
        whole, told = stages.reserved(plan), self.settings.policy.tell_ledger_position
        return Payment(
            request.run,
            request.first_stage().id,
            request.stage,
            of,
            whole.event,
            whole.distance,
            position=paid.seq if told else 0,
            reservations=ledger.position().reservations if told else 0,
        )

    def check_ledger(self, ledger: Ledger) -> None:
        """LedgerError where nothing may be spent: the ledger is behind what remembers it or contradicts `silo.toml`."""
        self.check_newest(ledger)
        self.check_declared(ledger)

    def check_newest(self, ledger: Ledger) -> None:
        """LedgerError when outbox, coordinator or anchor know of more than the ledger does."""
        if not continuity.Comparison(self._state / continuity.COMPARED, self.outbox, self._key).holds(ledger):
            continuity.check_outbox(self.outbox, ledger, self._key)
        self.coordinator_memory.check(ledger)
        ledger.check_anchor()

    def check_declared(self, ledger: Ledger) -> None:
        """LedgerError when the ledger contradicts `silo.toml`."""
        ledger.check_budget()
        ledger.check_holdout(self.declared_holdout())  # of another holdout, records would change sides

    def declared_holdout(self) -> dict[str, str]:
        """What the ledger keeps of the holdout; nothing where there is none."""
        key = self._holdout_key()
        return {} if key is None else {"holdout": holdout.declaration(self.settings.evaluation.holdout, key)}

    def _holdout_key(self) -> bytes | None:
        """What decides who is held out; None where nobody is."""
        return holdout.load_key(self._state / HOLDOUT_KEY) if self.settings.evaluation.holdout else None
