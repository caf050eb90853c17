from pathlib import Path

import pytest

from openai_kv.config import AuthSettings
from openai_kv.errors import AuthenticationError, ConfigError, PermissionDeniedError
from openai_kv.server.auth import load_authenticator


def test_keys_of_files_and_environment(tmp_path: Path) -> None:
    keys, admin = tmp_path / "keys", tmp_path / "admin"
    keys.write_text("# ours\nalice # since may\n\n  bob\n")
    admin.write_text("root\n")
    settings = AuthSettings(keys_file=str(keys), admin_key_file=str(admin))
    known = load_authenticator(settings, {"OPENAI_KV_API_KEYS": "carol,,dave"})
    named = {name: known.authenticate(f"Bearer {name}") for name in ("alice", "bob", "carol", "dave", "root")}
    assert [name for name, key in named.items() if key and key.admin] == ["root"]
    known.require_admin(named["root"])
    with pytest.raises(PermissionDeniedError):
        known.require_admin(named["alice"])
    for wrong in ("Bearer # ours", "Bearer since", None):
        with pytest.raises(AuthenticationError):
            known.authenticate(wrong)
    assert not any(name in repr(known) for name in named)


def test_namespaces() -> None:
    first = load_authenticator(AuthSettings(), {"OPENAI_KV_API_KEYS": "a,b"})
    a, b = first.authenticate("Bearer a"), first.authenticate("Bearer b")
    names = [first.namespace(key, salt) for key in (a, b) for salt in (None, "x", "y")]
    assert len(set(names)) == 6 and first.namespace(a, "x") == names[1]
    again = load_authenticator(AuthSettings(), {"OPENAI_KV_API_KEYS": "a,b"})
    assert again.namespace(again.authenticate("Bearer a"), "x") != names[1]
    assert first.namespace(None, None) == ""
    assert first.namespace(None, "salt") == first.namespace(None, "salt") != first.namespace(None, "pepper")
    assert "salt" not in first.namespace(None, "salt")


def test_without_keys_everybody_is_welcome_and_a_missing_file_is_a_setting_error(tmp_path: Path) -> None:
    nobody = load_authenticator(AuthSettings(), {})
    assert nobody.authenticate("Bearer whatever") is None
    nobody.require_admin(None)
    with pytest.raises(ConfigError, match="key file"):
        load_authenticator(AuthSettings(keys_file=str(tmp_path / "none")), {})
    (tmp_path / "empty").write_text("# alice\n\n")
    for settings in (
        AuthSettings(keys_file=str(tmp_path / "empty")),
        AuthSettings(admin_key_file=str(tmp_path / "empty")),
    ):
        with pytest.raises(ConfigError, match="holds no key"):
            load_authenticator(settings, {"OPENAI_KV_API_KEYS": "a"})


def test_a_kept_secret_makes_the_same_namespaces_in_the_next_process(tmp_path: Path) -> None:
    file = tmp_path / "home" / "secret"
    first, again = (load_authenticator(AuthSettings(), {"OPENAI_KV_API_KEYS": "a"}, file) for _ in range(2))
    key = first.authenticate("Bearer a")
    assert first.namespace(key, "x") == again.namespace(key, "x")
    assert file.stat().st_mode & 0o777 == 0o600 and len(file.read_bytes()) == 32
    file.write_bytes(b"torn")
    other = load_authenticator(AuthSettings(), {"OPENAI_KV_API_KEYS": "a"}, file)
    assert other.namespace(key, "x") != first.namespace(key, "x")
    with pytest.raises(ConfigError, match="secret"):
        load_authenticator(AuthSettings(), {}, file / "below")
