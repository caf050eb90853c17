"""Every error this package raises on purpose; each request error knows its HTTP status, type and code."""

from typing import ClassVar


class OpenAIKVError(Exception):
    """Base of all of them."""


class StartupError(OpenAIKVError):
    """The server can't start: a setting, a model or a plugin is wrong. The message is one line for the operator."""


class ConfigError(StartupError):
    """A setting is unknown or has a bad value."""


class ModelLoadError(StartupError):
    """The model can't be fetched, read or driven by our attention."""


class OperatorBuildError(OpenAIKVError):
    """The C++ attention operator can't be built or loaded; another backend does its work. The message says why."""


class PluginError(StartupError):
    """A plugin that the configuration names is missing or broken."""


class IntegrityError(OpenAIKVError):
    """The cache's books don't add up: a bug of ours, found by `check_integrity()`."""


class RecordsLostError(OpenAIKVError):
    """A metrics exporter could not deliver `count` records; they are counted as dropped."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} records could not be delivered")
        self.count = count


class CorruptRecordError(OpenAIKVError):
    """A cache tier answered with something else than what was put there."""


class TierFullError(OpenAIKVError):
    """A cache tier has no room for what it was given."""


class ExporterUnavailableError(OpenAIKVError):
    """A metrics exporter can't be asked: its queue is full, it is closed, or it raised."""


class RequestError(OpenAIKVError):
    """A request can't be answered; becomes the error envelope of the HTTP contract."""

    status: ClassVar[int] = 400
    type: ClassVar[str] = "invalid_request_error"
    default_code: ClassVar[str] = "invalid_value"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after = retry_after


class ParameterError(RequestError):
    """A parameter is missing, of the wrong type, out of range or not known; `code` says which."""


class PinLimitError(RequestError):
    """More would be pinned than the settings allow."""

    default_code = "pin_limit_exceeded"


class ContextLengthError(RequestError):
    default_code = "context_length_exceeded"


class TemplateError(RequestError):
    default_code = "template_error"


class AuthenticationError(RequestError):
    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    status = 403
    type = "permission_error"
    default_code = "admin_key_required"


class NotFoundError(RequestError):
    status = 404
    default_code = "unknown_url"


class MethodNotAllowedError(RequestError):
    status = 405
    default_code = "method_not_supported"


class RequestTimeoutError(RequestError):
    status = 408
    type = "timeout_error"
    default_code = "request_timeout"


class BodyTooLargeError(RequestError):
    status = 413
    default_code = "body_too_large"


class UnsupportedMediaTypeError(RequestError):
    status = 415
    default_code = "unsupported_content_type"


class OverloadedError(RequestError):
    """Too much work waits (`queue_full`), waited too long (`queue_timeout`) or came too fast."""

    status = 429
    type = "rate_limit_error"
    default_code = "queue_full"

    def __init__(
        self, message: str, *, code: str | None = None, retry_after: int | None = None, reason: str | None = None
    ) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.reason = reason


class InternalError(RequestError):
    status = 500
    type = "server_error"
    default_code = "internal_error"


class UpstreamError(RequestError):
    """`upstream_unreachable`, `upstream_timeout` or `upstream_loop`."""

    status = 502
    type = "upstream_error"
    default_code = "upstream_unreachable"


class UnavailableError(RequestError):
    """`model_loading`, `draining`, `shutting_down` or `engine_dead`; always with `retry_after`."""

    status = 503
    type = "server_error"
    default_code = "engine_dead"
