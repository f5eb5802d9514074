from dpdd.v1 import refusal_pb2 as _refusal_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Cost(_message.Message):
    __slots__ = ("epsilon", "delta", "bytes")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    bytes: int
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., bytes: _Optional[int] = ...) -> None: ...

class Declared(_message.Message):
    __slots__ = ("classes", "shape", "lowest", "highest", "fit", "table")
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    classes: _containers.RepeatedScalarFieldContainer[str]
    shape: _containers.RepeatedScalarFieldContainer[int]
    lowest: float
    highest: float
    fit: str
    table: str
    def __init__(self, classes: _Optional[_Iterable[str]] = ..., shape: _Optional[_Iterable[int]] = ..., lowest: _Optional[float] = ..., highest: _Optional[float] = ..., fit: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class PlanReport(_message.Message):
    __slots__ = ("request_id", "silo", "declared", "software", "cost", "refusal", "asks_operator", "paid")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ASKS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    PAID_FIELD_NUMBER: _ClassVar[int]
    request_id: bytes
    silo: str
    declared: Declared
    software: str
    cost: Cost
    refusal: _refusal_pb2.Refusal
    asks_operator: bool
    paid: bool
    def __init__(self, request_id: _Optional[bytes] = ..., silo: _Optional[str] = ..., declared: _Optional[_Union[Declared, _Mapping]] = ..., software: _Optional[str] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ..., refusal: _Optional[_Union[_refusal_pb2.Refusal, _Mapping]] = ..., asks_operator: _Optional[bool] = ..., paid: _Optional[bool] = ...) -> None: ...
