from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class BudgetStatus(_message.Message):
    __slots__ = ("silo", "epsilon_total", "delta", "epsilon_spent", "epsilon_remaining", "releases", "reservations", "composition", "ledger_head")
    SILO_FIELD_NUMBER: _ClassVar[int]
    EPSILON_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SPENT_FIELD_NUMBER: _ClassVar[int]
    EPSILON_REMAINING_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    COMPOSITION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_HEAD_FIELD_NUMBER: _ClassVar[int]
    silo: str
    epsilon_total: float
    delta: float
    epsilon_spent: float
    epsilon_remaining: float
    releases: int
    reservations: int
    composition: str
    ledger_head: bytes
    def __init__(self, silo: _Optional[str] = ..., epsilon_total: _Optional[float] = ..., delta: _Optional[float] = ..., epsilon_spent: _Optional[float] = ..., epsilon_remaining: _Optional[float] = ..., releases: _Optional[int] = ..., reservations: _Optional[int] = ..., composition: _Optional[str] = ..., ledger_head: _Optional[bytes] = ...) -> None: ...
