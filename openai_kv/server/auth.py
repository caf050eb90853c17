"""API keys: who may ask, and whose cache a request sees."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openai_kv.config import AuthSettings
from openai_kv.errors import AuthenticationError, ConfigError, PermissionDeniedError

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Key:
    """A configured key, as its SHA-256 digest only."""

    digest: bytes
    admin: bool = False

    @property
    def key_id(self) -> str:
        """How logs name it."""
        return self.digest.hex()[:8]


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Knows all keys. Without any, everybody may do everything and shares one cache."""

    keys: tuple[Key, ...] = ()
    isolate: bool = True
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES), repr=False)

    def authenticate(self, authorization: str | None) -> Key | None:
        """The key of an `Authorization` header, None if no key is needed; raises AuthenticationError."""
        if not self.keys:
            return None
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise AuthenticationError("An API key is needed: send 'Authorization: Bearer KEY'.")
        key = self.find(digest(token.strip()))
        if key is None:
            raise AuthenticationError("This API key is not valid.")
        return key

    def find(self, wanted: bytes) -> Key | None:
        """Compares with every key, without an early exit, so that time tells nothing."""
        matches = [key for key in self.keys if hmac.compare_digest(key.digest, wanted)]
        return next(iter(matches), None)

    def by_id(self, key_id: str) -> Key | None:
        return next((key for key in self.keys if key.key_id == key_id), None)

    def require_admin(self, key: Key | None) -> None:
        if any(known.admin for known in self.keys) and not (key and key.admin):
            raise PermissionDeniedError("This route needs the admin key.")

    def namespace(self, key: Key | None, salt: str | None) -> str:
        """The cache namespace of a request: a salt isolates, and under isolation each key has namespaces of its own.

        Plugins see it, so it tells neither key nor salt.
        """
        owner = key.digest if key is not None and self.isolate else b""
        if not owner and not salt:
            return ""
        return hmac.new(self.secret, owner + b" " + (salt or "").encode(), hashlib.sha256).hexdigest()


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def load_authenticator(
    settings: AuthSettings, environ: Mapping[str, str] | None = None, secret_file: Path | None = None
) -> Authenticator:
    """Keys of the environment and of files. Raises ConfigError if a file can't be read or holds none.

    With `secret_file` namespaces are the same in the next process.
    """
    variables = os.environ if environ is None else environ
    keys = variables.get(settings.keys_env, "").split(",") + read_lines(settings.keys_file)
    admin = variables.get(settings.admin_key_env, "").split(",") + read_lines(settings.admin_key_file)
    known = [Key(digest(key.strip()), admin=True) for key in admin if key.strip()]
    known += [Key(digest(key.strip())) for key in keys if key.strip()]
    secret = secrets.token_bytes(SECRET_BYTES) if secret_file is None else kept_secret(secret_file)
    return Authenticator(tuple(known), settings.isolate_cache_by_key, secret)


def kept_secret(file: Path) -> bytes:
    """The secret in `file`, drawn if there is none. Raises ConfigError if it can be neither read nor written."""
    try:
        if not file.exists() or file.stat().st_size != SECRET_BYTES:
            file.parent.mkdir(parents=True, exist_ok=True)
            new = file.with_name(f"{file.name}.{os.getpid()}")
            new.touch(mode=0o600)
            new.write_bytes(secrets.token_bytes(SECRET_BYTES))
            new.replace(file)
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't keep the secret of the cache's namespaces in {file}: {error.strerror}") from None


def read_lines(file: str) -> list[str]:
    """Lines without comments; none if no file is configured. A file without any would open the server: ConfigError."""
    if not file:
        return []
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the key file {file}: {error}") from None
    keys = [key for line in text.splitlines() if (key := line.partition("#")[0].strip())]
    if not keys:
        raise ConfigError(f"the key file {file} holds no key")
    return keys
