from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Manifest(_message.Message):
    __slots__ = ("sha256", "size", "request_id")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size: int
    request_id: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., request_id: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("payload_sha256", "offset", "data", "size")
    PAYLOAD_SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    payload_sha256: bytes
    offset: int
    data: bytes
    size: int
    def __init__(self, payload_sha256: _Optional[bytes] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class TransferStatus(_message.Message):
    __slots__ = ("payload_sha256", "received", "complete")
    PAYLOAD_SHA256_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    payload_sha256: bytes
    received: int
    complete: bool
    def __init__(self, payload_sha256: _Optional[bytes] = ..., received: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...
