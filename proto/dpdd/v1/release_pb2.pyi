from dpdd.v1 import array_pb2 as _array_pb2
from dpdd.v1 import privacy_pb2 as _privacy_pb2
from dpdd.v1 import request_pb2 as _request_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Release(_message.Message):
    __slots__ = ("request_id", "silo", "method", "kind", "arrays", "event", "guarantee", "distance", "releasable", "ledger_entry", "software", "public_counts", "held_out", "payment")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    RELEASABLE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ENTRY_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_COUNTS_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    PAYMENT_FIELD_NUMBER: _ClassVar[int]
    request_id: bytes
    silo: str
    method: str
    kind: _request_pb2.Kind
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    event: _privacy_pb2.Event
    guarantee: _privacy_pb2.Guarantee
    distance: float
    releasable: bool
    ledger_entry: bytes
    software: str
    public_counts: _containers.RepeatedScalarFieldContainer[int]
    held_out: bool
    payment: Payment
    def __init__(self, request_id: _Optional[bytes] = ..., silo: _Optional[str] = ..., method: _Optional[str] = ..., kind: _Optional[_Union[_request_pb2.Kind, str]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ..., event: _Optional[_Union[_privacy_pb2.Event, _Mapping]] = ..., guarantee: _Optional[_Union[_privacy_pb2.Guarantee, _Mapping]] = ..., distance: _Optional[float] = ..., releasable: _Optional[bool] = ..., ledger_entry: _Optional[bytes] = ..., software: _Optional[str] = ..., public_counts: _Optional[_Iterable[int]] = ..., held_out: _Optional[bool] = ..., payment: _Optional[_Union[Payment, _Mapping]] = ...) -> None: ...

class Payment(_message.Message):
    __slots__ = ("run", "root", "stage", "stages", "event", "distance", "position", "reservations")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    run: str
    root: bytes
    stage: int
    stages: int
    event: _privacy_pb2.Event
    distance: float
    position: int
    reservations: int
    def __init__(self, run: _Optional[str] = ..., root: _Optional[bytes] = ..., stage: _Optional[int] = ..., stages: _Optional[int] = ..., event: _Optional[_Union[_privacy_pb2.Event, _Mapping]] = ..., distance: _Optional[float] = ..., position: _Optional[int] = ..., reservations: _Optional[int] = ...) -> None: ...

class SignedRelease(_message.Message):
    __slots__ = ("release", "signature", "public_key")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    release: bytes
    signature: bytes
    public_key: bytes
    def __init__(self, release: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., public_key: _Optional[bytes] = ...) -> None: ...
