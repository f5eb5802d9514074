"""From privatised statistics to labelled images: post-processing only, so either side may run it."""
