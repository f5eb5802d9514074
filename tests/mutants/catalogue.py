"""All privacy mutants. One more belongs into the module of its area, with a `why` that a reviewer accepts."""

from __future__ import annotations

from tests.mutants.accounting import ACCOUNTS
from tests.mutants.ledger import LEDGERS
from tests.mutants.mechanisms import MECHANISMS
from tests.mutants.noise import NOISE
from tests.mutants.silo import SILOS
from tests.mutants.sums import SUMS

MUTANTS = (*SUMS, *NOISE, *ACCOUNTS, *MECHANISMS, *LEDGERS, *SILOS)
