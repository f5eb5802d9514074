"""What both sides share: accounting, noise, synthesis, public models, wire codecs, configuration."""

import os

# OpenMP threads that spin while they wait make torch crawl on a busy machine; this must be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
