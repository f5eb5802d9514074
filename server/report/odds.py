"""What a guarantee means to one person: how often somebody who guesses whether their record was used can be right.

The guesser may know everything else: all other records, the method, its settings. Before, a fair coin decides, so a
guess is right half of the time. (ε, δ) bounds true positives by e^ε times false ones plus δ, and true negatives
likewise. Both added up, a guess is right with probability at most (e^ε + δ) / (1 + e^ε), whatever is done with what was
released.

>>> round(most_often_right(1.0, 1e-5), 4), most_often_right(0.0, 0.0)
(0.7311, 0.5)
>>> odds_in_words(1.0, 1e-5), odds_in_words(None, 1e-5)
('from 50 % to at most 73.2 %', 'from 50 % to 100 %: no bound')
"""

from __future__ import annotations

import math


def most_often_right(epsilon: float | None, delta: float) -> float:
    """The largest probability of a right guess under (ε, δ), with even odds before; ε is None where there is none."""
    if epsilon is None or math.isinf(epsilon):
        return 1.0
    other = math.exp(-epsilon)
    return min((1.0 + delta * other) / (1.0 + other), 1.0)


def percent_at_most(share: float) -> str:
    """In percent with one decimal, rounded up, so that what is printed is a bound, too.

    >>> percent_at_most(0.7310586), percent_at_most(0.5)
    ('73.2', '50.0')
    """
    return f"{math.ceil(1000.0 * share - 1e-9) / 10.0:.1f}"


def odds_in_words(epsilon: float | None, delta: float) -> str:
    """From what a coin gives to what the guarantee still allows."""
    if epsilon is None or math.isinf(epsilon):
        return "from 50 % to 100 %: no bound"
    return f"from 50 % to at most {percent_at_most(most_often_right(epsilon, delta))} %"
