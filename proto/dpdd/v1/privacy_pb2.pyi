from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GaussianEvent(_message.Message):
    __slots__ = ("sigma", "releases")
    SIGMA_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    sigma: float
    releases: int
    def __init__(self, sigma: _Optional[float] = ..., releases: _Optional[int] = ...) -> None: ...

class PoissonGaussianEvent(_message.Message):
    __slots__ = ("sigma", "rate", "steps")
    SIGMA_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    sigma: float
    rate: float
    steps: int
    def __init__(self, sigma: _Optional[float] = ..., rate: _Optional[float] = ..., steps: _Optional[int] = ...) -> None: ...

class NonPrivateEvent(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EventPart(_message.Message):
    __slots__ = ("gaussian", "poisson_gaussian", "non_private")
    GAUSSIAN_FIELD_NUMBER: _ClassVar[int]
    POISSON_GAUSSIAN_FIELD_NUMBER: _ClassVar[int]
    NON_PRIVATE_FIELD_NUMBER: _ClassVar[int]
    gaussian: GaussianEvent
    poisson_gaussian: PoissonGaussianEvent
    non_private: NonPrivateEvent
    def __init__(self, gaussian: _Optional[_Union[GaussianEvent, _Mapping]] = ..., poisson_gaussian: _Optional[_Union[PoissonGaussianEvent, _Mapping]] = ..., non_private: _Optional[_Union[NonPrivateEvent, _Mapping]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[EventPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[EventPart, _Mapping]]] = ...) -> None: ...

class Guarantee(_message.Message):
    __slots__ = ("epsilon", "delta", "accountant", "neighbours")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTANT_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    accountant: str
    neighbours: str
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., accountant: _Optional[str] = ..., neighbours: _Optional[str] = ...) -> None: ...
