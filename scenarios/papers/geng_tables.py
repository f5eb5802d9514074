"""DP-GENG's tables as printed, in %. A dot is a cell that our copy of the paper does not show.

Of table 1 the copy has only the middle one of three stacked cells in some places; which that is follows from tables 2
and 6, where they repeat table 1, and cells that those repeat are filled in from there.
"""

from __future__ import annotations

TABLE_1 = tuple(
    tuple(cell.strip() for cell in line.split("|"))
    for line in """
1|DP-MERF|·|19.4 ± 0.3|·|·|3.4 ± 0.0|3.6 ± 0.1|·|64.6 ± 0.8|·
1|PE|15.2 ± 0.2|25.0 ± 1.0|37.7 ± 1.0|3.0 ± 0.3|7.4 ± 0.3|11.1 ± 0.2|54.8 ± 0.3|65.1 ± 0.3|70.6 ± 0.3
1|PrivImage|·|21.2 ± 0.3|·|·|2.0 ± 0.1|3.8 ± 0.1|·|64.2 ± 0.7|·
1|PSG|·|33.7 ± 0.2|35.9|·|8.3 ± 0.3|10.3|·|·|·
1|NDPDC|26.1 ± 0.4|39.8 ± 0.2|42.6 ± 0.6|7.8 ± 0.2|10.9 ± 0.1|11.5 ± 0.3|66.0 ± 1.7|77.7 ± 0.5|80.4 ± 0.6
1|DP-GENG|·|53.5 ± 0.3|55.9|·|21.1 ± 0.4|25.9|·|·|·
10|DP-MERF|·|21.7 ± 0.3|·|·|·|3.8 ± 0.2|·|68.5 ± 0.2|·
10|PE|16.0 ± 0.4|29.8 ± 0.4|42.1 ± 0.3|3.4 ± 0.1|10.0 ± 0.2|15.1 ± 0.2|56.1 ± 0.4|67.5 ± 0.5|75.3 ± 0.4
10|PrivImage|·|27.7 ± 0.5|·|·|·|4.3 ± 0.2|·|65.7 ± 0.2|·
10|PSG|·|40.3 ± 0.4|47.2 ± 0.6|·|18.0 ± 0.2|19.7|·|·|·
10|NDPDC|26.6 ± 1.2|46.8 ± 0.6|53.9 ± 0.2|10.7 ± 0.2|17.5 ± 0.7|19.2 ± 0.3|67.0 ± 2.2|78.1 ± 1.1|82.3 ± 0.7
10|DP-GENG|·|59.0 ± 0.3|65.5 ± 0.4|·|27.9 ± 0.4|32.3|·|·|·
∞|DM|·|·|63.0|·|29.7 ± 0.3|43.6|·|80.1 ± 0.3|·
∞|NCFM|·|·|·|·|48.7 ± 0.3|·|·|84.8 ± 0.3|·
∞|whole dataset|·|·|·|·|56.2 ± 0.3|·|·|95.6 ± 0.3|·
""".strip().splitlines()
)
"""Test accuracy of a ConvNet by claimed ε, with 1, 10 and 50 images per class of CIFAR-10, CIFAR-100 and CelebA."""

TABLE_2 = (
    ("PSG", "35.9", "0.08", "47.2", "0.13", "10.3", "0.09", "19.7", "0.20"),
    ("NDPDC", "42.6", "0.10", "53.9", "0.14", "11.5", "0.11", "19.2", "0.18"),
    ("DP-GENG", "55.9", "0.10", "65.5", "0.14", "25.9", "0.12", "32.3", "0.17"),
    ("DM, not private", "63.0", "0.82", "63.0", "0.82", "43.6", "1.06", "43.6", "1.06"),
)
"""Accuracy, and true positives of membership inference at 0.1 % false ones, with 50 images per class."""

TABLE_3A = (
    ("initialisation", "48.7 ± 0.4", "init"),
    ("matching", "53.2 ± 0.2", "fm"),
    ("initialisation, matching", "60.8 ± 0.3", "init-fm"),
    ("initialisation, matching, expert", "65.5 ± 0.4", "full"),
)
"""CIFAR-10, 50 images per class, a claimed ε of 10; and the row of ours with the same parts."""

TABLE_3B = (
    ("DP-MERF", "56.4 ± 0.3", "82.4 ± 0.2"),
    ("PE", "65.5 ± 0.4", "83.1 ± 0.5"),
    ("PrivImage", "64.7 ± 0.4", "85.7 ± 0.2"),
)
"""By generator: CIFAR-10 and CelebA, 50 images per class, a claimed ε of 10."""

TABLE_6 = (
    ("PSG", "10", "40.3 ± 0.4", "36.5 ± 0.4", "34.9 ± 0.8"),
    ("PSG", "50", "47.2 ± 0.6", "43.2 ± 0.4", "40.9 ± 0.3"),
    ("NDPDC", "10", "46.8 ± 0.6", "42.3 ± 0.5", "39.0 ± 0.1"),
    ("NDPDC", "50", "53.9 ± 0.2", "48.6 ± 0.6", "45.5 ± 0.4"),
    ("DP-GENG", "10", "59.0 ± 0.3", "52.8 ± 0.4", "49.5 ± 0.8"),
    ("DP-GENG", "50", "65.5 ± 0.4", "58.2 ± 0.2", "56.7 ± 0.3"),
)
"""CIFAR-10 at a claimed ε of 10, judged by ConvNet-3, ResNet-18 and DenseNet-121."""

TABLE_4 = (
    ("10", "1.21", "1.17", "1.17", "57.2 ± 0.2", "shares-equal"),
    ("10", "0.27", "1.07", "1.66", "59.7 ± 0.4", "shares-expert"),
    ("10", "0.27", "1.75", "0.92", "61.3 ± 0.5", "shares-matching"),
    ("10", "0.27", "1.48", "1.30", "65.5 ± 0.3", "full"),
    ("20", "0.50", "2.50", "2.31", "68.7 ± 0.4", ""),
)
"""CIFAR-10, 50 images per class, by claimed ε and μ of generator, matching and expert; and the row of ours like it."""
