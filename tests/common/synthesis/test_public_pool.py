"""Labels of public images: kept by hash, in bytes, and joined with whatever copy of the images there is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpdd.common.errors import DataError
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product_files import POOL
from dpdd.common.synthesis.public_pool import LabelledPool, PoolFacts, PoolLabels, hashes_of, probabilities, quantised

FACTS = PoolFacts("photos", "CC0-1.0", ("cat", "dog", "emu"), (3, 8, 8), "crop")
IMAGES = np.random.default_rng(1).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
SOFT = np.random.default_rng(2).dirichlet(np.ones(3), 6)


def test_labels_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    pool = LabelledPool.of(IMAGES, SOFT, FACTS)
    assert pool.labels.save(tmp_path) == hashlib.sha256((tmp_path / POOL).read_bytes()).hexdigest()
    loaded = PoolLabels.load(tmp_path)
    assert loaded.facts == FACTS
    assert np.array_equal(loaded.hashes, pool.labels.hashes) and np.array_equal(loaded.soft, pool.soft)
    assert (tmp_path / POOL).stat().st_size < 1000, "it holds no image"


def test_a_hash_is_of_the_pixels_alone() -> None:
    other_order = np.ascontiguousarray(IMAGES.transpose(0, 3, 2, 1)).transpose(0, 3, 2, 1)  # in memory; equal images
    assert np.array_equal(other_order, IMAGES) and np.array_equal(hashes_of(other_order), hashes_of(IMAGES))
    assert hashes_of(IMAGES)[2].tobytes() == hashlib.sha256(IMAGES[2].tobytes()).digest()


def test_images_and_labels_find_each_other_in_any_order() -> None:
    labels = LabelledPool.of(IMAGES, SOFT, FACTS).labels
    strangers = np.full((2, 3, 8, 8), 7, np.uint8)
    joined = labels.join(np.concatenate([strangers, IMAGES[[5, 0, 3]], IMAGES[[0]]]))
    assert joined.missing == 3
    assert {digest.tobytes() for digest in joined.missing_hashes} == {d.tobytes() for d in hashes_of(IMAGES[[1, 2, 4]])}
    for image, soft in zip(joined.pool.images, joined.pool.soft, strict=True):
        [place] = [number for number, known in enumerate(IMAGES) if np.array_equal(known, image)]
        assert np.abs(soft - SOFT[place]).max() < 0.01
    tensors = joined.pool.as_torch()
    assert len(tensors) == 3 and float(tensors[0][0].max()) <= 1.0
    with pytest.raises(DataError, match="uint8 of shape"):
        labels.join(IMAGES[:, :1])


def test_an_image_that_is_there_twice_counts_once() -> None:
    pool = LabelledPool.of(IMAGES[[0, 0, 1]], SOFT[[0, 0, 1]], FACTS)
    assert len(pool) == 2 and np.array_equal(pool.images, IMAGES[[0, 1]])
    assert np.abs(pool.soft - SOFT[:2]).max() < 0.01


def test_probabilities_survive_bytes() -> None:
    many = np.random.default_rng(3).dirichlet(np.full(1000, 0.5), 5)
    for soft, least in ((SOFT, 0.005), (many, 0.05)):
        back = probabilities(quantised(soft))
        assert np.allclose(back.sum(axis=1), 1.0, atol=1e-5) and np.abs(back - soft).max() < least
    flat = np.full((1, 1000), 0.001)
    assert probabilities(quantised(flat)).sum() == 1.0, "labels too faint for a step still are labels"


@pytest.mark.parametrize("odd", ["no hash", "no label", "twice", "classes", "format", "words", "fit", "shape", "text"])
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, odd: str) -> None:
    pool = LabelledPool.of(IMAGES, SOFT, FACTS)
    hashes, steps, header = pool.labels.hashes.copy(), pool.labels.steps.copy(), None
    if odd == "no hash":
        hashes = hashes[:, :16].copy()
    elif odd == "no label":
        steps[2] = 0
    elif odd == "twice":
        hashes[3] = hashes[1]
    elif odd == "classes":
        steps = steps[:, :2].copy()
    elif odd == "format":
        header = {"dpdd": '{"format": "something"}'}
    elif odd in ("words", "fit", "shape"):
        changed = {"words": {"licence": "free\x1b[2J"}, "fit": {"fit": "stretch"}, "shape": {"shape": (3, 8, -8)}}
        about = {"format": "dpdd pool v1", **asdict(FACTS), **changed[odd]}
        header = {"dpdd": json.dumps(about)}
    pool.labels.save(tmp_path)
    if odd == "text":
        (tmp_path / POOL).write_text("hello")
    else:
        from safetensors import safe_open

        with safe_open(tmp_path / POOL, framework="numpy") as file:
            header = header or file.metadata()
        save_file({"sha256": hashes, "soft": steps}, tmp_path / POOL, metadata=header)
    with pytest.raises(DataError, match="no labels of a public pool"):
        PoolLabels.load(tmp_path)


def test_a_set_is_saved_with_its_pools_labels_and_loses_those_of_before(tmp_path: Path) -> None:
    pets = LabelledSet(IMAGES[:3], np.array([0, 1, 2]), FACTS.classes, pool=LabelledPool.of(IMAGES, SOFT, FACTS))
    pets.save(tmp_path)
    assert len(PoolLabels.load(tmp_path)) == 6
    assert LabelledSet.load(tmp_path).pool is None, "whoever loads a set has to bring the images"
    replace(pets, pool=None).save(tmp_path)
    with pytest.raises(DataError, match="names no public pool"):
        PoolLabels.load(tmp_path)
