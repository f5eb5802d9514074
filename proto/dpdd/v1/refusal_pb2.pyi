from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_OVER_BUDGET: _ClassVar[Reason]
    REASON_NOT_ALLOWED: _ClassVar[Reason]
    REASON_AWAITING_APPROVAL: _ClassVar[Reason]
    REASON_UNKNOWN_METHOD: _ClassVar[Reason]
    REASON_MALFORMED: _ClassVar[Reason]
    REASON_DENIED: _ClassVar[Reason]
    REASON_WRONG_COORDINATOR: _ClassVar[Reason]
REASON_UNSPECIFIED: Reason
REASON_OVER_BUDGET: Reason
REASON_NOT_ALLOWED: Reason
REASON_AWAITING_APPROVAL: Reason
REASON_UNKNOWN_METHOD: Reason
REASON_MALFORMED: Reason
REASON_DENIED: Reason
REASON_WRONG_COORDINATOR: Reason

class Shortfall(_message.Message):
    __slots__ = ("requested", "remaining", "difference")
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    requested: float
    remaining: float
    difference: float
    def __init__(self, requested: _Optional[float] = ..., remaining: _Optional[float] = ..., difference: _Optional[float] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("request_id", "silo", "reason", "message", "shortfall")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_FIELD_NUMBER: _ClassVar[int]
    request_id: bytes
    silo: str
    reason: Reason
    message: str
    shortfall: Shortfall
    def __init__(self, request_id: _Optional[bytes] = ..., silo: _Optional[str] = ..., reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ..., shortfall: _Optional[_Union[Shortfall, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("signed_release", "refusal")
    SIGNED_RELEASE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    signed_release: bytes
    refusal: Refusal
    def __init__(self, signed_release: _Optional[bytes] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...
