"""The holdout: each record's side is its own, the sides are apart, and nothing moves records between them unnoticed."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.client import holdout
from dpdd.client.cli import main
from dpdd.client.config import load_settings
from dpdd.client.records.records import Records
from dpdd.client.silo import HOLDOUT_KEY, Silo
from dpdd.common.errors import ConfigError, LedgerError
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.wire.answer import SignedReleaseBytes
from dpdd.common.wire.release import Release, open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest
from tests.client.evaluations import ask, evaluating_silo
from tests.client.silos import CLASSES, SHAPE, make_request

KEY = bytes(range(32))
WITHOUT_NOISE = "[simulation]\nallow_no_noise = true\nnoise_seed = 3\n"


def images(count: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, *SHAPE), dtype=np.uint8), generator.integers(0, 3, count)


def released(silo: Silo, request: ReleaseRequest) -> Release:
    answer = silo.answer(request.encode())
    assert isinstance(answer, SignedReleaseBytes), answer
    return open_signed(answer.data, silo.public_key)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_the_share_is_near_the_declared_one(share: float) -> None:
    features, labels = images(4000)
    aside = holdout.held_out(Records(features, labels), share, KEY)
    assert abs(aside.mean() - share) < 5.0 * np.sqrt(share * (1.0 - share) / 4000)
    for label in range(3):  # and in every class
        assert abs(aside[labels == label].mean() - share) < 0.08


def test_one_record_more_or_less_moves_nobody_else_and_order_does_not_matter() -> None:
    features, labels = images(300)
    aside = holdout.held_out(Records(features, labels), 0.3, KEY)
    for gone in (0, 7, 150, 299):
        rest = holdout.held_out(Records(np.delete(features, gone, 0), np.delete(labels, gone)), 0.3, KEY)
        assert np.array_equal(rest, np.delete(aside, gone))
    order = np.random.default_rng(1).permutation(300)
    assert np.array_equal(holdout.held_out(Records(features[order], labels[order]), 0.3, KEY), aside[order])
    alone = [holdout.held_out(Records(features[i : i + 1], labels[i : i + 1]), 0.3, KEY)[0] for i in range(40)]
    assert alone == aside[:40].tolist()


def test_a_side_depends_on_pixels_label_and_key_and_a_larger_share_keeps_who_was_aside() -> None:
    features, labels = images(300)
    records = Records(features, labels)
    aside = holdout.held_out(records, 0.3, KEY)
    assert not np.array_equal(aside, holdout.held_out(records, 0.3, bytes(32)))
    assert not np.array_equal(aside, holdout.held_out(Records(features, (labels + 1) % 3), 0.3, KEY))
    other = features.copy()
    other[:, 0, 0, 0] ^= 1
    assert not np.array_equal(aside, holdout.held_out(Records(other, labels), 0.3, KEY))
    assert (holdout.held_out(records, 0.6, KEY) >= aside).all()
    twice = Records(np.concatenate([features, features]), np.concatenate([labels, labels]))
    assert np.array_equal(holdout.held_out(twice, 0.3, KEY), np.concatenate([aside, aside]))


def table(count: int, kinds: int = 12, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows of codes of which there are few kinds, so that most have many copies."""
    generator = np.random.default_rng(seed)
    kind = generator.integers(0, kinds, count)
    return np.stack([kind % 4, kind // 4], axis=1).astype(np.float32), generator.integers(0, 2, count)


def sides(features: NDArray[np.float32], labels: NDArray[np.int64], share: float = 0.3) -> tuple[list, list]:
    """What is on either side, as collections of records."""
    aside = holdout.held_out(Records(features, labels), share, KEY)
    both = np.column_stack([features, labels])
    return sorted(both[aside].tolist()), sorted(both[~aside].tolist())


def test_equal_rows_of_a_table_are_on_both_sides_in_the_declared_share() -> None:
    features, labels = table(4000)
    aside = holdout.held_out(Records(features, labels), 0.3, KEY)
    for row in np.unique(features, axis=0):
        for label in (0, 1):
            members = (features == row).all(axis=1) & (labels == label)
            count = int(members.sum())
            assert count > 100 and abs(aside[members].mean() - 0.3) < 5.0 * np.sqrt(0.21 / count)


def test_one_row_more_or_less_changes_one_side_by_that_row_whichever_copy_it_is() -> None:
    features, labels = table(300)
    held, rest = sides(features, labels)
    for gone in range(0, 300, 7):
        fewer_held, fewer_rest = sides(np.delete(features, gone, 0), np.delete(labels, gone))
        missing = [*_without(held, fewer_held), *_without(rest, fewer_rest)]
        assert missing == [[*features[gone].tolist(), float(labels[gone])]]
    order = np.random.default_rng(1).permutation(300)
    assert sides(features[order], labels[order]) == (held, rest)


def _without(collection: list, part: list) -> list:
    """What is left of `collection` without `part`, all of which must be in it."""
    left = list(collection)
    for each in part:
        left.remove(each)
    return left


def test_bytes_and_floats_of_the_same_picture_are_on_the_same_side() -> None:
    features, labels = images(100)
    floats = features.astype(np.float32) / np.float32(255)
    assert np.array_equal(
        holdout.held_out(Records(features, labels), 0.4, KEY), holdout.held_out(Records(floats, labels), 0.4, KEY)
    )


def test_a_release_and_an_evaluation_read_what_the_other_does_not(tmp_path: Path) -> None:
    features, labels = images(200)
    silo = evaluating_silo(tmp_path / "north", images=features, labels=labels, holdout=0.3, extra=WITHOUT_NOISE)
    key = (tmp_path / "north" / "state" / HOLDOUT_KEY).read_bytes()
    aside = holdout.held_out(Records(features, labels), 0.3, key)
    unprotected = float("inf")
    method = released(silo, make_request(epsilon=unprotected))
    counted = method.arrays["count"][:, 0] / (0.1 * FIXED_POINT_ONE)
    evaluation = released(silo, ask(epsilon=unprotected))
    answered = evaluation.arrays["model0"].sum(axis=1) / FIXED_POINT_ONE
    assert np.rint(counted).tolist() == np.bincount(labels[~aside], minlength=3).tolist()
    assert np.rint(answered).tolist() == np.bincount(labels[aside], minlength=3).tolist()
    for request, mask in ((make_request(epsilon=unprotected), ~aside), (ask(epsilon=unprotected), aside)):
        twin = evaluating_silo(
            tmp_path / f"twin-{mask.sum()}", images=features[mask], labels=labels[mask], extra=WITHOUT_NOISE
        )
        mine, theirs = released(silo, request), released(twin, request)
        assert all(np.array_equal(mine.arrays[name], theirs.arrays[name]) for name in mine.arrays)
    distilled = replace(
        make_request(epsilon=unprotected),
        kind=Kind.DISTILLED_SET,
        settings={
            "method": {"features": 16},
            "synthesis": {"steps": 2, "batch": 6},
            "images_per_class": 1,
        },
    )
    counts = released(silo, distilled).arrays["counts"]
    assert np.rint(counts).tolist() == np.bincount(labels[~aside], minlength=3).tolist()


def edit(folder: Path, old: str, new: str) -> Silo:
    text = (folder / "silo.toml").read_text()
    assert old in text
    (folder / "silo.toml").write_text(text.replace(old, new))
    return Silo(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [("holdout = 0.3", "holdout = 0.4"), ("holdout = 0.3", "holdout = 0.0"), ("[evaluation]\nholdout = 0.3\n", "")],
)
def test_another_share_after_the_first_release_is_refused(
    old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "north"
    silo = evaluating_silo(home, holdout=0.3)
    silo = edit(home, "holdout = 0.3", "holdout = 0.2")  # before anything was released it may change
    silo = edit(home, "holdout = 0.2", "holdout = 0.3")
    released(silo, make_request())
    changed = edit(home, old, new)
    for request in (ask(), make_request(run="other")):
        with pytest.raises(LedgerError, match="records would change sides"):
            changed.answer(request.encode())
    assert len(changed.outbox.ids()) == 1
    assert main(["preflight", "--silo", str(home)]) != 0
    assert "change sides" in capsys.readouterr().err
    back = ("[policy]", old + "[policy]") if not new else (new, old)
    released(edit(home, *back), ask())


def test_a_holdout_after_a_release_that_read_everything_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "north"
    released(evaluating_silo(home), make_request())
    late = edit(home, "[policy]", "[evaluation]\nholdout = 0.2\n[policy]")
    with pytest.raises(LedgerError, match=r"with a holdout of none, and silo\.toml says 0\.2"):
        late.answer(ask().encode())
    released(edit(home, "holdout = 0.2", "holdout = 0.0"), ask())


def test_another_key_is_noticed_and_a_missing_one_reserves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "north"
    silo = evaluating_silo(home, holdout=0.3)
    key = home / "state" / HOLDOUT_KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(ConfigError, match="init"):
        silo.answer(make_request().encode())
    ledger = silo.ledger()
    assert [entry.kind for entry in ledger.entries()] == ["open"]
    ledger.close()
    key.write_bytes(kept)
    released(silo, make_request())
    key.unlink()
    Silo.initialise(home)
    assert key.read_bytes() != kept
    with pytest.raises(LedgerError, match="another key"):
        Silo(home).answer(ask().encode())


def test_keys_differ_and_a_simulation_s_is_repeatable(tmp_path: Path) -> None:
    def key(name: str, **options: object) -> bytes:
        evaluating_silo(tmp_path / name, **options)  # type: ignore[arg-type]
        return (tmp_path / name / "state" / HOLDOUT_KEY).read_bytes()

    assert key("a/north") != key("b/north")
    assert key("c/north", extra=WITHOUT_NOISE) == key("d/north", extra=WITHOUT_NOISE)
    assert key("e/north", extra=WITHOUT_NOISE) != key("e/south", extra=WITHOUT_NOISE)


def test_counts_that_are_declared_public_and_a_holdout_do_not_go_together(tmp_path: Path) -> None:
    home = tmp_path / "north"
    evaluating_silo(home, holdout=0.3)
    text = (home / "silo.toml").read_text()
    counts = ", ".join(f"{name} = 20" for name in CLASSES)
    (home / "silo.toml").write_text(text.replace("[policy]", f"[policy]\npublic_counts = {{{counts}}}"))
    with pytest.raises(ConfigError, match="keeps some of them back"):
        load_settings(home)


def test_a_ledger_without_a_holdout_says_nothing_of_one(tmp_path: Path) -> None:
    silo = evaluating_silo(tmp_path / "north")
    released(silo, make_request())
    ledger = silo.ledger()
    assert "holdout" not in ledger.entries()[1].body
    ledger.close()
