"""Making the public backbones."""
