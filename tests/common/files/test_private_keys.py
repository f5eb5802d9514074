"""Where a passphrase comes from, and in which order; what is said about a key that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.files import private_keys
from dpdd.common.files.private_keys import (
    CREDENTIAL,
    FILE_VARIABLE,
    find_passphrase,
    key_pem,
    load_ed25519,
    load_elliptic_curve,
    new_passphrase,
)


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    monkeypatch.setattr(private_keys, "_prompted", {})


def private(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def typed(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Somebody at a terminal who types these; the questions that were asked."""
    questions: list[str] = []

    def ask(question: str) -> str:
        questions.append(question)
        return answers[len(questions) - 1]

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", ask)
    return questions


def test_the_sources_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key.pem"
    with pytest.raises(ConfigError, match="none is here"):
        find_passphrase(key)
    typed(monkeypatch, "from the terminal")
    assert find_passphrase(key) == b"from the terminal"
    (tmp_path / CREDENTIAL).write_bytes(b"from systemd\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert find_passphrase(key) == b"from systemd"
    setting = private(tmp_path / "setting", b"from the setting\r\nmore\n")
    assert find_passphrase(key, setting) == b"from the setting"
    monkeypatch.setenv(FILE_VARIABLE, str(private(tmp_path / "named", b"from the variable")))
    assert find_passphrase(key, setting) == b"from the variable"


def test_one_typing_opens_all_keys_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = b"long enough for this"
    one = private(tmp_path / "one.pem", key_pem(Ed25519PrivateKey.generate(), secret))
    two = private(tmp_path / "two.pem", key_pem(ec.generate_private_key(ec.SECP256R1()), secret))
    questions = typed(monkeypatch, "a mistake", secret.decode(), "never asked")
    with pytest.raises(IntegrityError, match="the passphrase is wrong"):
        load_ed25519(one, "the key", "init")
    load_ed25519(one, "the key", "init")
    load_elliptic_curve(two, "the other key", "init")
    assert len(questions) == 2


def test_a_new_passphrase_is_typed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = typed(monkeypatch, "long enough for this", "long enough for that")
    with pytest.raises(ConfigError, match="differ"):
        new_passphrase(tmp_path / "key.pem")
    assert len(questions) == 2
    typed(monkeypatch, "long enough for this", "long enough for this")
    assert new_passphrase(tmp_path / "key.pem") == b"long enough for this"


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    signing = private(tmp_path / "signing.pem", key_pem(Ed25519PrivateKey.generate()))
    curve = private(tmp_path / "curve.pem", key_pem(ec.generate_private_key(ec.SECP256R1())))
    with pytest.raises(IntegrityError, match="not an Ed25519 key"):
        load_ed25519(curve, "the key", "init")
    with pytest.raises(IntegrityError, match="not an elliptic-curve key"):
        load_elliptic_curve(signing, "the key", "init")
    with pytest.raises(IntegrityError, match="the key is missing; `init` makes one"):
        load_ed25519(tmp_path / "none.pem", "the key", "init")
    for content in (b"", b"rubbish", signing.read_bytes()[:60]):
        with pytest.raises(IntegrityError, match="not a PKCS#8 key in PEM"):
            load_ed25519(private(signing, content), "the key", "init")
    with pytest.raises(IntegrityError, match="cannot be read"):
        load_ed25519(tmp_path, "the key", "init")
