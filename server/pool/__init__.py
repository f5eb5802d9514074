"""A pool of public images as material: labelled by the classifier that releases contain, selected from, distilled."""
