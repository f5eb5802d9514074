"""Public models: backbones (feature networks with a provenance card), random networks, and their training."""
