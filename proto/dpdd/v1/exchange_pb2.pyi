from dpdd.v1 import plan_pb2 as _plan_pb2
from dpdd.v1 import refusal_pb2 as _refusal_pb2
from dpdd.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("token", "certificate_request", "release_public_key")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RELEASE_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    token: str
    certificate_request: bytes
    release_public_key: bytes
    def __init__(self, token: _Optional[str] = ..., certificate_request: _Optional[bytes] = ..., release_public_key: _Optional[bytes] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("certificate", "authority", "silo", "request_key", "port")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    authority: bytes
    silo: str
    request_key: bytes
    port: int
    def __init__(self, certificate: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., silo: _Optional[str] = ..., request_key: _Optional[bytes] = ..., port: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("certificate_request",)
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    certificate_request: bytes
    def __init__(self, certificate_request: _Optional[bytes] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class RequestKeysQuery(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bytes
    def __init__(self, known: _Optional[bytes] = ...) -> None: ...

class RequestKeyChain(_message.Message):
    __slots__ = ("rotations",)
    ROTATIONS_FIELD_NUMBER: _ClassVar[int]
    rotations: _containers.RepeatedCompositeFieldContainer[RequestKeyRotation]
    def __init__(self, rotations: _Optional[_Iterable[_Union[RequestKeyRotation, _Mapping]]] = ...) -> None: ...

class RequestKeyRotation(_message.Message):
    __slots__ = ("number", "old_key", "new_key", "signature")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OLD_KEY_FIELD_NUMBER: _ClassVar[int]
    NEW_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    number: int
    old_key: bytes
    new_key: bytes
    signature: bytes
    def __init__(self, number: _Optional[int] = ..., old_key: _Optional[bytes] = ..., new_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RequestsQuery(_message.Message):
    __slots__ = ("software",)
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    software: str
    def __init__(self, software: _Optional[str] = ...) -> None: ...

class RequestEnvelope(_message.Message):
    __slots__ = ("request", "signature", "rehearsal")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    REHEARSAL_FIELD_NUMBER: _ClassVar[int]
    request: bytes
    signature: bytes
    rehearsal: bytes
    def __init__(self, request: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., rehearsal: _Optional[bytes] = ...) -> None: ...

class RehearsalReport(_message.Message):
    __slots__ = ("rehearsal", "report")
    REHEARSAL_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    rehearsal: bytes
    report: _plan_pb2.PlanReport
    def __init__(self, rehearsal: _Optional[bytes] = ..., report: _Optional[_Union[_plan_pb2.PlanReport, _Mapping]] = ...) -> None: ...

class UploadPart(_message.Message):
    __slots__ = ("manifest", "chunk")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    manifest: _transfer_pb2.Manifest
    chunk: _transfer_pb2.Chunk
    def __init__(self, manifest: _Optional[_Union[_transfer_pb2.Manifest, _Mapping]] = ..., chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("doing", "in_trouble_with")
    DOING_FIELD_NUMBER: _ClassVar[int]
    IN_TROUBLE_WITH_FIELD_NUMBER: _ClassVar[int]
    doing: str
    in_trouble_with: bytes
    def __init__(self, doing: _Optional[str] = ..., in_trouble_with: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PositionQuery(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LedgerPosition(_message.Message):
    __slots__ = ("sequence", "entry")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    entry: bytes
    def __init__(self, sequence: _Optional[int] = ..., entry: _Optional[bytes] = ...) -> None: ...

class StoredQuery(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: bytes
    def __init__(self, after: _Optional[bytes] = ...) -> None: ...

class StoredReleases(_message.Message):
    __slots__ = ("releases",)
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    releases: _containers.RepeatedCompositeFieldContainer[_transfer_pb2.Manifest]
    def __init__(self, releases: _Optional[_Iterable[_Union[_transfer_pb2.Manifest, _Mapping]]] = ...) -> None: ...

class FetchQuery(_message.Message):
    __slots__ = ("sha256", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    offset: int
    def __init__(self, sha256: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...
