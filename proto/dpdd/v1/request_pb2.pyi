from dpdd.v1 import array_pb2 as _array_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_STATISTICS: _ClassVar[Kind]
    KIND_DISTILLED_SET: _ClassVar[Kind]
    KIND_GRADIENT_ROUND: _ClassVar[Kind]
    KIND_EVALUATION: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
KIND_STATISTICS: Kind
KIND_DISTILLED_SET: Kind
KIND_GRADIENT_ROUND: Kind
KIND_EVALUATION: Kind

class ReleaseRequest(_message.Message):
    __slots__ = ("run", "stage", "method", "kind", "settings", "public_seed", "epsilon", "delta", "classes", "shape", "backbone_sha256", "centre", "table")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_SEED_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    BACKBONE_SHA256_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    run: str
    stage: int
    method: str
    kind: Kind
    settings: str
    public_seed: int
    epsilon: float
    delta: float
    classes: _containers.RepeatedScalarFieldContainer[str]
    shape: _containers.RepeatedScalarFieldContainer[int]
    backbone_sha256: bytes
    centre: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    table: str
    def __init__(self, run: _Optional[str] = ..., stage: _Optional[int] = ..., method: _Optional[str] = ..., kind: _Optional[_Union[Kind, str]] = ..., settings: _Optional[str] = ..., public_seed: _Optional[int] = ..., epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., classes: _Optional[_Iterable[str]] = ..., shape: _Optional[_Iterable[int]] = ..., backbone_sha256: _Optional[bytes] = ..., centre: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ..., table: _Optional[str] = ...) -> None: ...
