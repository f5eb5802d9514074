"""Pretraining and building the public backbones."""
