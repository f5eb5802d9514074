"""A silo answers once, refuses with a type, and never tells by refusing or by breaking what its records hold."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.mechanisms import base as mechanisms
from dpdd.client.silo import Silo
from dpdd.common.errors import DataError, DpddError, IntegrityError, LedgerError
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.release import open_signed
from tests.client.silos import CLASSES, SHAPE, make_request, make_silo
from tests.server.releases import as_asked


def released(silo: Silo, request: object) -> bytes:
    answer = silo.answer(request.encode())  # type: ignore[attr-defined]
    assert isinstance(answer, SignedReleaseBytes), answer
    return answer.data


def refused(silo: Silo, data: bytes) -> Refusal:
    answer = silo.answer(data)
    assert isinstance(answer, Refusal)
    return answer


def test_a_release_says_what_it_cost_and_is_the_same_for_ever(tmp_path: Path) -> None:
    silo, request = make_silo(tmp_path / "north"), make_request()
    data = released(silo, request)
    release = open_signed(data, silo.public_key)
    assert (release.silo, release.request_id, release.releasable) == ("north", request.id, True)
    assert (release.guarantee.epsilon, release.guarantee.delta) == (1.0, 1e-5)
    assert release.event.sigma == pytest.approx(3.7306, abs=1e-3)  # type: ignore[union-attr]
    assert released(Silo(tmp_path / "north"), request) == data
    assert open_signed(data).arrays["embedding"].shape == (3, 32)


def test_the_ledger_entry_holds_the_event_that_ran(tmp_path: Path) -> None:
    silo, request = make_silo(tmp_path / "north"), make_request()
    release = open_signed(released(silo, request))
    ledger = silo.ledger()
    entry = ledger.reservation(request.id)
    assert entry is not None and entry.hash == release.ledger_entry
    assert entry.body["event"][0]["sigma"] == release.event.sigma  # type: ignore[union-attr]
    assert ledger.status().spent == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("sigma", [0.5, 100.0])
def test_a_mechanism_that_runs_another_event_than_planned_releases_nothing(
    sigma: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less noise is further from the ideal, too; of one that is not (more noise, or another rate) the event tells."""
    from dpdd.common.privacy.events import Gaussian

    honest = mechanisms.privatise
    monkeypatch.setattr(mechanisms, "privatise", lambda total, _event, entropy: honest(total, Gaussian(sigma), entropy))
    silo = make_silo(tmp_path / "north")
    with pytest.raises(IntegrityError, match="another event"):
        silo.answer(make_request().encode())
    assert silo.outbox.ids() == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "dp-magic"}, Reason.UNKNOWN_METHOD),
        ({"epsilon": 3.0}, Reason.NOT_ALLOWED),
        ({"epsilon": float("inf")}, Reason.NOT_ALLOWED),
        ({"epsilon": 1.5}, Reason.OVER_BUDGET),
        ({"delta": 1e-3}, Reason.NOT_ALLOWED),
        ({"classes": ("ant", "bee")}, Reason.NOT_ALLOWED),
        ({"shape": (3, 8, 8)}, Reason.NOT_ALLOWED),
        ({"settings": {"features": 16, "colour": "red"}}, Reason.MALFORMED),
        ({"settings": {"features": -1}}, Reason.MALFORMED),
    ],
)
def test_refusals_are_typed_cost_nothing_and_read_no_record(
    tmp_path: Path, changes: dict[str, object], reason: Reason
) -> None:
    silo = make_silo(tmp_path / "north")
    (tmp_path / "north" / "records.npz").unlink()
    refusal = refused(silo, make_request(**changes).encode())
    assert refusal.reason == reason
    assert refusal.message and "\n" not in refusal.message
    assert silo.ledger().status().reserved == 0


def test_over_budget_gives_requested_remaining_and_difference(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    released(silo, make_request(epsilon=0.5))
    refusal = refused(silo, make_request(run="second", epsilon=0.9).encode())
    assert refusal.reason == Reason.OVER_BUDGET
    shortfall = refusal.shortfall
    assert shortfall is not None
    assert shortfall.requested == pytest.approx(0.9, abs=1e-6)
    assert 0.0 < shortfall.remaining < 0.9
    assert shortfall.difference == pytest.approx(shortfall.requested - shortfall.remaining)
    released(silo, make_request(run="third", epsilon=shortfall.remaining - 1e-6))


def test_counts_are_public_only_where_the_operator_typed_them_in(tmp_path: Path) -> None:
    from dpdd.common.errors import ConfigError
    from dpdd.common.methods.base import RunDescription
    from dpdd.common.methods.registry import method
    from dpdd.server.aggregation.rules import aggregate

    secret = open_signed(released(make_silo(tmp_path / "secret"), make_request()))
    assert secret.public_counts == ()
    home = tmp_path / "open"
    make_silo(home)
    text = (home / "silo.toml").read_text()
    declared = text.replace("[policy]", "[policy]\npublic_counts = { cat = 7, ant = 20, bee = 33 }")
    (home / "silo.toml").write_text(declared)
    release = as_asked(released(Silo(home), make_request()), make_request())
    assert release.public_counts == (20, 33, 7)
    settings = method("dp-merf").settings({"features": 16})
    layout = method("dp-merf").layout(settings, RunDescription(CLASSES, SHAPE, 3), 0)
    for rule in ("sum", "precision"):
        total = aggregate([release], layout, rule, settings.count_weight)  # type: ignore[arg-type]
        if rule == "sum":
            np.testing.assert_allclose(total.sums["count"][:, 0] / settings.count_weight, [20, 33, 7], atol=1e-4)
    (home / "silo.toml").write_text(declared.replace("cat = 7, ", ""))
    with pytest.raises(ConfigError, match="every class"):
        Silo(home)


def test_garbage_is_malformed(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    for garbage in (b"", b"\xff" * 40, os.urandom(300), make_request().encode()[:-3]):
        refusal = refused(silo, garbage)
        assert refusal.reason == Reason.MALFORMED
        assert refusal.request_id == hashlib.sha256(garbage).hexdigest()


def test_asking_waits_for_the_operator(tmp_path: Path) -> None:
    silo, request = make_silo(tmp_path / "north", approval="ask"), make_request()
    for _ in range(2):
        assert refused(silo, request.encode()).reason == Reason.AWAITING_APPROVAL
    assert [waiting.id for waiting in silo.waiting()] == [request.id]
    silo.ledger().note("approve", request.id)
    assert silo.waiting() == []
    released(silo, request)
    other = make_request(run="other")
    refused(silo, other.encode())
    silo.ledger().note("deny", other.id, {"why": "not this year"})
    refusal = refused(silo, other.encode())
    assert refusal.reason == Reason.DENIED and "not this year" in refusal.message


def test_unreadable_data_is_an_error_that_costs_once_and_can_be_tried_again(tmp_path: Path) -> None:
    silo, request = make_silo(tmp_path / "north"), make_request()
    records = tmp_path / "north" / "records.npz"
    whole = records.read_bytes()
    records.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError):
        silo.answer(request.encode())
    assert silo.outbox.ids() == []
    records.write_bytes(whole)
    released(silo, request)
    assert [entry.kind for entry in silo.ledger().entries()] == ["open", "reserve", "commit"]


def test_a_lost_or_altered_outbox_file_is_never_made_again(tmp_path: Path) -> None:
    silo, request = make_silo(tmp_path / "north"), make_request()
    data = released(silo, request)
    path = tmp_path / "north" / "state" / "outbox" / f"{request.id}.release"
    path.write_bytes(data[:-1] + b"?")
    with pytest.raises(IntegrityError):
        silo.answer(request.encode())
    path.unlink()
    with pytest.raises(LedgerError, match="never made a second time"):
        silo.answer(request.encode())


def test_a_release_that_the_ledger_never_paid_for_does_not_leave(tmp_path: Path) -> None:
    silo, request = make_silo(tmp_path / "north"), make_request()
    data = released(silo, request)
    other = make_silo(tmp_path / "other" / "north")
    (tmp_path / "other" / "north" / "state" / "outbox" / f"{request.id}.release").write_bytes(data)
    with pytest.raises(IntegrityError):
        other.answer(request.encode())


def test_one_request_asked_in_parallel_gives_one_release(tmp_path: Path) -> None:
    make_silo(tmp_path / "north")
    request = make_request()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: Silo(tmp_path / "north").answer(request.encode()), range(4)))
    assert len({answer.data for answer in answers}) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("records", [1, 2])
def test_a_tiny_silo_and_empty_classes_work(tmp_path: Path, records: int) -> None:
    silo = make_silo(tmp_path / "north", records=records)
    release = open_signed(released(silo, make_request()))
    assert release.arrays["count"].shape == (3, 1)


def test_a_silo_without_any_record_answers_like_its_neighbour_with_one(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north", images=np.zeros((0, *SHAPE), np.uint8), labels=np.zeros(0, np.int64))
    released(silo, make_request())


def clean_sums(folder: Path, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The sums without noise, through the simulation-only door."""
    silo = make_silo(folder, images=images, labels=labels, extra="[simulation]\nallow_no_noise = true")
    release = open_signed(released(silo, make_request(epsilon=float("inf"))))
    assert not release.releasable
    return dict(release.arrays)


def test_seeded_noise_repeats_and_says_so(tmp_path: Path) -> None:
    releases = []
    for copy in ("a", "b"):
        silo = make_silo(tmp_path / copy / "north", extra="[simulation]\nnoise_seed = 4")
        releases.append(open_signed(released(silo, make_request())))
    np.testing.assert_array_equal(releases[0].arrays["embedding"], releases[1].arrays["embedding"])
    assert not releases[0].releasable
    honest = [make_silo(tmp_path / copy / "north") for copy in ("c", "d")]
    noisy = [open_signed(released(silo, make_request())).arrays["embedding"] for silo in honest]
    assert (noisy[0] != noisy[1]).mean() > 0.99


ATTEMPT = """
import os, resource, signal, sys
from pathlib import Path
import scipy.special, dpdd.client.mechanisms.dp_merf
from dpdd.client.silo import Silo
from dpdd.common.errors import DpddError
silo = Silo(Path(sys.argv[1]))
request = Path(sys.argv[2]).read_bytes()
{setup}
try:
    answer = silo.answer(request)
except DpddError as error:
    print(error)
    sys.exit(error.exit_code)
print(type(answer).__name__)
"""


def attempt(silo: Silo, setup: str) -> subprocess.CompletedProcess[str]:
    """Answer a request in a process of its own, after `setup`."""
    request = silo.folder / "some.request"
    request.write_bytes(make_request().encode())
    command = [sys.executable, "-c", ATTEMPT.format(setup=setup), str(silo.folder), str(request)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def check_clear_failure(silo: Silo, finished: subprocess.CompletedProcess[str]) -> None:
    assert finished.returncode == LedgerError.exit_code, finished.stderr + finished.stdout
    assert len(finished.stdout.strip().splitlines()) == 1
    assert "Traceback" not in finished.stderr
    assert silo.outbox.ids() == []


@pytest.mark.parametrize("limit", [0, 4096, 9000])
def test_no_space_gives_one_sentence_and_no_release(tmp_path: Path, limit: int) -> None:
    silo = make_silo(tmp_path / "north")
    setup = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    check_clear_failure(silo, attempt(silo, setup))
    released(silo, make_request())


def test_a_full_disk_gives_one_sentence_and_no_release(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f"""
set -e
mount -t tmpfs -o size=120k none {disk}
cp -a {tmp_path}/north {disk}/north
dd if=/dev/zero of={disk}/filler bs=1k count=1000 2>/dev/null || true
set +e
"$@"
code=$?
ls {disk}/north/state/outbox
exit $code
"""
    silo = make_silo(tmp_path / "north", records=20)
    request = tmp_path / "some.request"
    request.write_bytes(make_request().encode())
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("this machine does not let a test mount a small disk")
    command = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, "-c", ATTEMPT.format(setup="")]
    finished = subprocess.run([*command, str(disk / "north"), str(request)], capture_output=True, text=True)
    check_clear_failure(silo, finished)
    assert "full" in finished.stdout or "No space" in finished.stdout


def test_a_read_only_ledger_gives_one_sentence_and_no_release() -> None:
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, whose parents are closed to other users
        Path(folder).chmod(0o755)
        silo = make_silo(Path(folder) / "north")
        state = silo.folder / "state"
        setup = ""
        if os.getuid() == 0:  # root may write everywhere: become nobody, who owns nothing here but may read
            os.chown(state / "key.pem", 65534, 65534)
            state.chmod(0o755)
            setup = "os.setgid(65534); os.setuid(65534)"
        else:
            (state / "ledger.sqlite").chmod(0o444)
            (state / "lock").touch()
            state.chmod(0o555)
        finished = attempt(silo, setup)
        state.chmod(0o700)
        check_clear_failure(silo, finished)


def test_a_key_open_to_others_is_refused(tmp_path: Path) -> None:
    make_silo(tmp_path / "north")
    (tmp_path / "north" / "state" / "key.pem").chmod(0o644)
    with pytest.raises(DpddError, match="chmod 600"):
        Silo(tmp_path / "north")


def test_limits_are_only_set_in_children() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
