from dataclasses import replace

import numpy as np
import pytest
import torch

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.methods.dp_kip.kernels import FeatureKernel, centred, predictions
from dpdd.common.models import backbone
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.teacher import Teacher
from dpdd.server.evaluation.kernel_regression import SHARPNESS, kernel_regression
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.scoring import described, scores, train_learners
from dpdd.server.evaluation.settings import EvaluationSection, LearnerSettings

KRR = ("krr", "krr-features", "krr-ntk", "krr-perceptual", "krr-entk")
SCATTER = backbone.load("scattering-1x12x12")


def bars(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Upright bars, lying bars and squares, somewhere, on noise."""
    generator = np.random.Generator(np.random.PCG64(seed))
    images = generator.integers(0, 60, (count, 1, 12, 12)).astype(np.uint8)
    labels = np.arange(count) % 3
    for image, label in zip(images, labels, strict=True):
        row, column = generator.integers(1, 6, 2)
        height, width = ((6, 2), (2, 6), (5, 5))[label]
        image[0, row : row + height, column : column + width] += 180
    return images, labels


def dataset(soft: np.ndarray | None = None, count: int = 30) -> LabelledSet:
    return LabelledSet(*bars(count, 1), ("upright", "lying", "square"), soft)


@pytest.mark.parametrize("name", KRR)
def test_regressions_learn_what_a_set_shows(name: str) -> None:
    settings = EvaluationSection(learners=(name,), labels="hard")
    test = LabelledImages(*bars(300, 2), ("upright", "lying", "square"))
    trained = train_learners(dataset(count=90), settings, SCATTER, seed=0)
    assert scores(trained[name], test)["accuracy"].mean > 0.8


def test_features_as_weights_are_kernel_predictions() -> None:
    settings, own = LearnerSettings(labels="hard"), dataset()
    images = own.as_torch().tensors[0]
    found = kernel_regression(own, "features", settings, SCATTER)(images[:4])
    kernel = FeatureKernel(lambda x: SCATTER.network.features(x).double())
    targets = centred(torch.from_numpy(own.labels), 3).double()
    expected = SHARPNESS * predictions(kernel, images[:4], images, targets, settings.krr.ridge)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


def test_the_embedding_is_the_set_s_own_where_the_backbone_is() -> None:
    embedding = ImageEmbedding(5, 2, 1)
    teacher = Teacher(np.zeros((3, embedding.dimensions), np.float32), "none", SCATTER.card.sha256, embedding)
    own = LabelledSet(*bars(30, 1), ("upright", "lying", "square"), None, teacher)
    settings, images = LearnerSettings(labels="hard"), own.as_torch().tensors[0]
    small = FeatureKernel(lambda x: embedding.of(SCATTER.network, x, SCATTER.network.features(x)).double())
    targets = centred(torch.from_numpy(own.labels), 3).double()
    expected = SHARPNESS * predictions(small, images, images, targets, settings.krr.ridge)
    found = kernel_regression(own, "embedding", settings, SCATTER)(images)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
    other = kernel_regression(dataset(), "embedding", settings, SCATTER)(images)
    assert not torch.allclose(found, other, atol=1e-2)


def test_soft_labels_are_learnt_from_and_never_augmentations() -> None:
    soft = np.full((30, 3), 0.1, np.float32)
    soft[np.arange(30), (np.arange(30) + 1) % 3] = 0.8  # everybody is the next class
    embedding = ImageEmbedding(5, 2, 1)
    teacher = Teacher(
        np.zeros((3, embedding.dimensions), np.float32), SCATTER.card.name, SCATTER.card.sha256, embedding
    )
    own = replace(dataset(soft), teacher=teacher)  # which would say nothing of augmentations
    labels = {"hard": "hard", "soft": "soft", "teacher": "soft"}
    for asked, taken in labels.items():
        settings = EvaluationSection(learners=("krr",), labels=asked, metrics=())
        trained = train_learners(own, settings, SCATTER, seed=0)
        answers = trained["krr"][0](dataset().as_torch().tensors[0]).argmax(1)
        assert answers.tolist() == [(label + (taken == "soft")) % 3 for label in dataset().labels]
        test = LabelledImages(*bars(30, 2), dataset().classes)
        shown = described({"krr": scores(trained["krr"], test)}, own, settings, SCATTER)
        assert (shown["accuracy"]["krr"]["labels"], shown["accuracy"]["krr"]["backbone"]) == (taken, SCATTER.card.name)


def test_there_is_one_classifier_whatever_the_seed() -> None:
    settings = LearnerSettings(labels="hard", runs=3)
    images = dataset().as_torch().tensors[0]
    answers = [LEARNERS["krr-ntk"].train(dataset(), settings, None, seed)[0](images) for seed in (0, 1)]
    assert torch.equal(*answers)
    assert len(LEARNERS["krr-ntk"].train(dataset(), settings, None, 0)) == 1


def test_a_regression_on_a_backbone_needs_one() -> None:
    with pytest.raises(ConfigError, match="krr starts from a public backbone"):
        LEARNERS["krr"].train(dataset(), LearnerSettings(), None, 0)
