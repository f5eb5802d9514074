"""What the rows of `dpdd-sim baselines` are called: on the command line, and in its table. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Mapping

TITLES: Mapping[str, str] = {
    "real": "all real records, ConvNet",
    "real-subset": "some real records, ConvNet",
    "alone": "each silo's real records, ConvNet",
    "probe": "logistic regression, not private",
    "logistic": "DP logistic regression",
    "lda": "one-shot DP-LDA",
    "ridge": "one-shot DP ridge",
    "fedpft": "one-shot class Gaussians (FedPFT)",
    "dp-fedavg-head": "DP-FedAvg of a linear head",
    "finetune": "DP-SGD fine-tuning",
    "dp-sgd": "DP-SGD from scratch",
    "dp-fedavg": "DP-FedAvg from scratch",
    "feddm": "FedDM, not private",
    "fedlap-dp": "FedLAP-DP",
}
"""Of images, by name."""
USUAL = ("probe", "logistic", "lda", "ridge")
"""The rows of a table where nobody says which: those that take a minute."""
JUDGED = ("real", "real-subset", "alone", "feddm", "fedlap-dp")
"""Those with images that the ConvNet of the literature learns from."""
SIZED = ("real-subset", "feddm", "fedlap-dp")
"""Those whose sets have so many images of each class."""
FEDERATED = ("alone", "lda", "ridge", "fedpft", "dp-fedavg-head", "dp-fedavg", "feddm", "fedlap-dp")
"""Those in which no curator has the records of all silos."""

OF_TABLES: Mapping[str, str] = {
    "real": "all real rows",
    "real-subset": "some real rows",
    "alone": "each silo's real rows",
}
"""Of rows of a table, which classifiers train on."""
