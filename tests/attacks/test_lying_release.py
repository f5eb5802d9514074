"""A silo with a real key signs what is not so: every statement is recomputed, by the coordinator and by any reader."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.silo import Silo
from dpdd.client.transport.upload import manifest_of, upload
from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.methods.verification import check_release, check_size, expected_of
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian, to_json
from dpdd.common.progress import Console
from dpdd.common.wire.exchange import Manifest
from dpdd.common.wire.release import Release, inspect_bytes, open_signed, sign
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.server.cli import main as server
from dpdd.server.run.pipeline import Run
from dpdd.server.run.requests import make_request as request_of
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import load_scenario
from dpdd.server.run.store import Store
from dpdd.server.transport.grid import Deadline, ExchangeGrid
from dpdd.v1 import exchange_pb2
from tests.attacks.test_bad_silo import Forgery, altered, first, goes_on_without_it, prepared, with_arrays
from tests.client.silos import make_request, make_silo
from tests.server.finished_runs import finished_run, images
from tests.server.transport.worlds import big_release, big_request, until, world


def guarantee(**changes: Any) -> Forgery:
    return lambda release: altered(release, guarantee=replace(release.guarantee, **changes))


def sigma(factor: float) -> Forgery:
    return lambda release: altered(release, event=Gaussian(release.event.sigma * factor))  # type: ignore[union-attr]


LIES: dict[str, tuple[Forgery, str]] = {
    "hardly any noise": (lambda release: altered(release, event=Gaussian(0.05)), "noise Gaussian, σ = 0.05; asked"),
    "a little less noise": (sigma(1.0 - 1e-6), "noise Gaussian"),
    "more noise, and others weigh more": (sigma(100.0), "noise Gaussian"),
    "noise drawn twice": (lambda release: altered(release, event=Gaussian(release.event.sigma, 2)), "2 times"),  # type: ignore[union-attr]
    "a sample": (lambda release: altered(release, event=PoissonGaussian(0.7, 0.01, 1)), "Poisson-sampled"),
    "no noise": (lambda release: altered(release, event=NonPrivate(), releasable=False), "no protection"),
    "epsilon understated": (guarantee(epsilon=0.25), "guarantee ε = 0.25"),
    "epsilon overstated": (guarantee(epsilon=4.0), "guarantee ε = 4.0"),
    "delta understated": (guarantee(delta=1e-9), "δ = 1e-09"),
    "another accountant": (guarantee(accountant="trust me"), "trust me"),
    "another distance": (lambda release: altered(release, distance=1e-7), "distance to ideal noise of 1e-07"),
    "another method": (lambda release: altered(release, method="sps"), "method sps; asked for is dp-merf"),
    "another kind": (lambda release: altered(release, kind=Kind.DISTILLED_SET), "kind distilled set"),
    "an array more": (with_arrays(lambda arrays: {**arrays, "thanks": np.zeros(1, np.int64)}), "thanks"),
    "an array less": (with_arrays(lambda arrays: {first(arrays): arrays[first(arrays)]}), "arrays count: int64"),
    "another shape": (with_arrays(lambda arrays: {**arrays, "count": arrays["count"][:1]}), "count: int64 (1, 1)"),
    "another dtype": (with_arrays(lambda arrays: {**arrays, "count": arrays["count"].astype(np.int32)}), "int32"),
    "counts of other classes": (lambda release: altered(release, public_counts=(1, 2)), "public counts of classes: 2"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Silo, Release, ReleaseRequest]:
    request = make_request()
    silo = make_silo(tmp_path_factory.mktemp("honest") / "north")
    return silo, open_signed(silo.answer(request.encode()).data), request  # type: ignore[union-attr]


@pytest.mark.parametrize(("lie", "words"), LIES.values(), ids=LIES)
def test_a_lie_is_told_from_the_request_and_kept_nowhere(
    honest: tuple[Silo, Release, ReleaseRequest], lie: Forgery, words: str, tmp_path: Path
) -> None:
    silo, release, request = honest
    data = sign(lie(release), silo._key)
    store = Store(tmp_path / "store")
    store.add_request(request.id, request.encode())
    with pytest.raises(IntegrityError, match="silo north sent a release with") as caught:
        store.add(data, request.id, Roster({"north": silo.public_key}))
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert store.digests(request.id) == {} and len(list((tmp_path / "store").iterdir())) == 1
    store.close()


def test_what_may_differ_is_accepted(honest: tuple[Silo, Release, ReleaseRequest]) -> None:
    _, release, request = honest
    for fine in (release, altered(release, distance=0.0), sigma(1.0 + 1e-12)(release), sigma(1.0 - 1e-12)(release)):
        check_release(fine.header, expected_of(request))


def test_a_simulation_without_noise_cannot_be_called_releasable(tmp_path: Path) -> None:
    request = make_request(epsilon=math.inf)
    silo = make_silo(tmp_path / "north", extra="[simulation]\nallow_no_noise = true\n")
    release = open_signed(silo.answer(request.encode()).data)  # type: ignore[union-attr]
    check_release(release.header, expected_of(request))
    with pytest.raises(IntegrityError, match="without protection releasable"):
        check_release(altered(release, releasable=True).header, expected_of(request))


@pytest.mark.parametrize(
    ("lie", "mode"), [("hardly any noise", "centralised"), ("epsilon understated", "decentralised")]
)
def test_a_run_goes_on_without_a_silo_that_lies(lie: str, mode: str, tmp_path: Path) -> None:
    goes_on_without_it(*prepared(tmp_path, LIES[lie][0], mode=mode), tmp_path / "run")


def test_a_release_from_before_there_was_a_check_is_left_out(tmp_path: Path) -> None:
    """It lies in the store already, as an older version took it."""
    run, grid = prepared(tmp_path, LIES["hardly any noise"][0])
    kept = Store.add

    def as_it_was(store: Store, data: bytes, request_id: str, roster: Roster) -> Release:
        release = open_signed(data)
        if release.silo != grid.bad:
            return kept(store, data, request_id, roster)
        path = tmp_path / "lie"
        path.write_bytes(data)
        store.adopt(path, hashlib.sha256(data).hexdigest(), request_id, grid.bad)
        return release

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "add", as_it_was)
        goes_on_without_it(run, grid, tmp_path / "run")
    assert "noise Gaussian, σ = 0.05" in run.missing["east"]


# Over the exchange

OWN = """
name = "liars"
[data]
classes = ["ant", "bee", "cat"]
shape = [1, 8, 8]
[method]
name = "dp-merf"
[method.settings]
features = 16
[synthesis]
images_per_class = 2
[synthesis.settings]
steps = 2
batch = 10
[exchange]
quorum = {quorum}
"""


@pytest.mark.parametrize("quorum", [2, 3])
def test_a_run_over_the_exchange_goes_on_at_quorum_and_names_the_liar(
    tmp_path: Path, quorum: int, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(OWN.format(quorum=quorum))
    request = request_of(load_scenario(str(scenario)))
    with world(tmp_path) as here:
        silos = [here.silo(name, records=3000) for name in ("east", "north", "south")]  # far above the noise
        roster = here.coordinator.registry.roster()
        run = Run(load_scenario(str(scenario)), tmp_path / "run", roster, Console(quiet=True), rehearsal=None)
        grid = ExchangeGrid(here.queue, roster, Deadline(240.0, quorum))
        failed: list[Exception] = []

        def execute() -> None:
            try:
                run.execute(grid)
            except Exception as error:
                failed.append(error)

        running = threading.Thread(target=execute)
        running.start()
        until(lambda: here.queue.row(request.id, "south") is not None)
        for silo in silos:
            data = silo.answer(request.encode()).data  # type: ignore[union-attr]
            path = tmp_path / f"{silo.settings.name}.payload"
            if silo.settings.name == "east":
                data = sign(LIES["hardly any noise"][0](open_signed(data)), silo._key)
            path.write_bytes(data)
            with here.channel(silo) as channel:
                if silo.settings.name != "east":
                    upload(channel, path, manifest_of(path, request.id), lambda _: None)
                    continue
                with pytest.raises(grpc.RpcError, match="silo east sent a release with noise") as caught:
                    upload(channel, path, manifest_of(path, request.id), lambda _: None)
                assert caught.value.code() is grpc.StatusCode.DATA_LOSS
        running.join(240.0)
        assert not running.is_alive() and not here.partials() and len(here.releases()) == 2
    if quorum == 3:
        assert len(failed) == 1 and "2 of 3 silos released something, and the quorum is 3" in str(failed[0])
        return
    assert not failed
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert {row["silo"] for row in card["silos"]} == {"north", "south"}
    assert "noise Gaussian, σ = 0.05; asked for is Gaussian" in card["silos_without_release"]["east"]
    assert server(["verify", str(tmp_path / "run")]) == 0
    assert "north, dataset: noise, layout and guarantee are those of request" in capsys.readouterr().out


def test_a_gigabyte_is_refused_at_its_first_message(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        request = here.ask(silo)
        most = expected_of(request).most_bytes
        with here.channel(silo) as channel:
            for size in (1 << 30, most + 1):
                wire = Manifest("ab" * 32, size, request.id)
                part = exchange_pb2.UploadPart(manifest=wire.to_wire()).SerializeToString()
                calls: list[Callable[[], object]] = [
                    lambda part=part: channel.stream_unary("/dpdd.v1.Exchange/Upload")(iter([part]), timeout=60),  # type: ignore[misc]
                    lambda wire=wire: channel.unary_unary("/dpdd.v1.Exchange/Status")(  # type: ignore[misc]
                        wire.to_wire().SerializeToString(), timeout=60
                    ),
                ]
                for call in calls:
                    with pytest.raises(grpc.RpcError, match=f"has at most {most} bytes, not {size}") as caught:
                        call()
                    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert here.partials() == [] and here.releases() == []
            fits = Manifest("ab" * 32, most, request.id).to_wire().SerializeToString()
            channel.unary_unary("/dpdd.v1.Exchange/Status")(fits, timeout=60)


def test_a_large_release_of_another_layout_is_never_loaded(tmp_path: Path) -> None:
    """Names, dtypes and shapes are read where they lie: memory does not grow with what nobody asked for."""
    silo, request = make_silo(tmp_path / "north"), make_request()
    large = big_request(6_000_000)
    data = big_release(silo, large)
    store = Store(tmp_path / "store")
    for each in (request, large):
        store.add_request(each.id, each.encode())
    expected = expected_of(request)
    roster = Roster({"north": silo.public_key})
    with pytest.raises(WireError, match="has at most"):
        check_size(len(data), expected)
    tracemalloc.start()
    try:
        header = inspect_bytes(data, silo.public_key)
        with pytest.raises(IntegrityError):
            check_release(header, expected)
        with pytest.raises(IntegrityError, match="another request"):
            store.add(data, request.id, roster)
        assert tracemalloc.get_traced_memory()[1] < len(data) / 10
    finally:
        tracemalloc.stop()
    store.add(data, large.id, roster)  # as it is what the other request asks for
    store.close()


# What readers check


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    finished_run(tmp_path / "run", images())
    yield tmp_path / "run"


def exported(run: Path) -> Path:
    out = run.parent / "out"
    assert server(["export", str(run), "--out", str(out)]) == 0
    return out


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    card = json.loads((folder / "card.json").read_text())
    change(card)
    (folder / "card.json").write_text(json.dumps(card))


TAMPERED: dict[str, Callable[[dict[str, Any]], object]] = {
    "epsilon": lambda card: card["silos"][0].update(epsilon=0.5),
    "delta": lambda card: card["silos"][0].update(delta=1e-9),
    "event": lambda card: card["silos"][0]["event"][0].update(sigma=9.0),
    "noise distance": lambda card: card["silos"][0].update(noise_distance=0.0),
    "accountant": lambda card: card["silos"][0].update(accountant="trust me"),
    "neighbours": lambda card: card["silos"][0].update(neighbours="replace one"),
    "releasable": lambda card: card["silos"][0].update(releasable=False),
    "public counts": lambda card: card["silos"][0].update(public_counts=[1, 2]),
    "number of releases": lambda card: card["silos"][0].update(releases=2),
    "another silo": lambda card: card["silos"][0].update(silo="west"),
    "method": lambda card: card.update(method="sps"),
    "mode": lambda card: card.update(mode="decentralised"),
    "classes": lambda card: card.update(classes=["ill", "healthy"]),
}


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED)
def test_a_card_that_says_something_else_is_refused(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit(run, change)
    assert server(["verify", str(run)]) == IntegrityError.exit_code


def lying_run(folder: Path, lie: Forgery, *, requests: bool = True) -> Path:
    """An export that says of itself what a release says that lies, under keys that its card names."""
    finished_run(folder / "run", images())
    out = exported(folder / "run")
    key = Ed25519PrivateKey.generate()
    card = json.loads((out / "card.json").read_text())
    for row in card["silos"]:
        (digest,) = row["release_sha256"]
        path = out / "store" / digest
        lied = lie(open_signed(path.read_bytes()))
        data = sign(lied, key)
        path.unlink()
        row["release_sha256"] = [hashlib.sha256(data).hexdigest()]
        (out / "store" / row["release_sha256"][0]).write_bytes(data)
        row |= {"public_key": key.public_key().public_bytes_raw().hex(), "epsilon": lied.guarantee.epsilon}
        row |= {"delta": lied.guarantee.delta, "event": to_json(lied.event), "noise_distance": lied.distance}
    (out / "card.json").write_text(json.dumps(card))
    if not requests:
        shutil.rmtree(out / "requests")
    return out


def test_a_signed_card_of_little_noise_is_refused_with_requests_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lie = LIES["hardly any noise"][0]
    told = {True: "sent a release with noise Gaussian, σ = 0.05", False: "its noise costs inf: Gaussian, σ = 0.05"}
    for requests, words in told.items():
        out = lying_run(tmp_path / str(requests), lie, requests=requests)
        assert server(["verify", str(out)]) == IntegrityError.exit_code
        assert words in capsys.readouterr().err


def test_epsilon_understated_is_recomputed_without_the_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = lying_run(tmp_path, guarantee(epsilon=0.25), requests=False)
    assert server(["verify", str(out)]) == IntegrityError.exit_code
    assert "states ε = 0.25 at δ = 1e-05, and its noise costs 1: Gaussian, σ = 3.73063" in capsys.readouterr().err


def test_an_export_without_requests_says_what_was_not_recomputed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = exported(run)
    shutil.rmtree(out / "requests")
    assert server(["verify", str(out)]) == 0
    said = capsys.readouterr().out
    assert "north, dataset: not compared with its request, which is not in this folder; ε = 1 at δ = 1e-05" in said


def test_a_request_that_was_exchanged_is_noticed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (exported(run) / "requests").iterdir()
    path.write_bytes(make_request(epsilon=2.0).encode())
    assert server(["verify", str(run.parent / "out")]) == IntegrityError.exit_code
    assert "is not what its name says" in capsys.readouterr().err


def test_two_releases_of_a_silo_cannot_pass_for_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each at ε = 1: together they cost more, and a row states ε once."""
    card = finished_run(tmp_path / "run", images())
    row = card["silos"][0]
    request = make_request("second", classes=tuple(card["classes"]))
    silo = make_silo(tmp_path / "twin" / "north", classes=tuple(card["classes"]))
    real = Silo(tmp_path / "run" / "silos" / "north")
    release = open_signed(silo.answer(request.encode()).data)  # type: ignore[union-attr]
    store = Store(tmp_path / "run" / "store")
    store.add_request(request.id, request.encode())
    added = store.add(sign(release, real._key), request.id, Roster({"north": real.public_key}))
    digest = store.digest(request.id, "north")
    store.close()

    def both(card: dict[str, Any]) -> None:
        sigma = row["event"][0]["sigma"]
        event = [{"kind": "gaussian", "sigma": sigma, "releases": 2}]
        distance = row["noise_distance"] + added.distance
        digests = [*row["release_sha256"], digest]
        card["silos"][0] |= {"release_sha256": digests, "releases": 2, "event": event, "noise_distance": distance}

    edit(tmp_path / "run", both)
    assert server(["verify", str(tmp_path / "run")]) == IntegrityError.exit_code
    assert "no stages of one" in capsys.readouterr().err


def test_verify_says_both_figures_and_writes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "silos")
    for folder in (run, exported(run)):
        before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
        folders = {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*")) if path.is_dir()}
        capsys.readouterr()
        assert server(["verify", "--thorough", str(folder)]) == 0
        said = capsys.readouterr().out
        assert "ε = 1 at δ = 1e-05 by analytic Gaussian, 1.09259 by Rényi" in said
        after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
        assert before == after
        assert folders == {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*")) if path.is_dir()}


def test_a_card_text_that_was_edited_is_pointed_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert server(["verify", str(run)]) == 0 and "CARD.md is not" not in capsys.readouterr().out
    text = (run / "CARD.md").read_text()
    (run / "CARD.md").write_text(text.replace("north  1  ", "north  0.1"))
    assert server(["verify", str(run)]) == 0 and "CARD.md is not" in capsys.readouterr().out
