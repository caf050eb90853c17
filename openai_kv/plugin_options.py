"""A plugin's options: the parameters of its constructor."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import to_jsonable_python

from openai_kv.complaints import did_you_mean, first_error
from openai_kv.errors import ConfigError

SECRETS = ("key", "token", "secret", "password")


def options_model(cls: type) -> type[BaseModel]:
    """The constructor's parameters as a model: it checks options, converts text and knows the defaults."""
    parameters = inspect.signature(cls, eval_str=True).parameters.values()
    fields: dict[str, Any] = {
        parameter.name: (
            Any if parameter.annotation is parameter.empty else parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    return create_model(cls.__name__, __config__=config, **fields)


def checked(plugin: str, model: type[BaseModel], options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the constructor. Raises ConfigError."""
    try:
        values = model(**options)
    except ValidationError as error:
        raise ConfigError(explain(plugin, model, error)) from None
    return {name: getattr(values, name) for name in model.model_fields}


def explain(plugin: str, model: type[BaseModel], error: ValidationError) -> str:
    """The first complaint, and what the plugin takes."""
    first = first_error(error)
    name = ".".join(map(str, first["loc"]))
    accepted = list(model.model_fields)
    problem = first["msg"].removeprefix("Input ")
    if first["type"] == "extra_forbidden":
        problem = f"unknown option{did_you_mean(name, accepted)}"
    return f"plugins.{plugin}.{name}: {problem}; it takes {', '.join(accepted) or 'no options'}"


def shown(model: type[BaseModel], options: Mapping[str, Any]) -> dict[str, Any]:
    """What is in effect, the defaults too, without secrets."""
    fields = model.model_fields
    values = {name: "(required)" if field.is_required() else field.default for name, field in fields.items()}
    return {name: mask(name, value) for name, value in {**values, **options}.items()}


def masked(text: str) -> str:
    """Without what URLs in it tell of users and passwords, in front of the host (there may be an @ in it) or behind."""
    text = re.sub(r"(?<=://)[^/]*@", "***@", text)
    return re.sub(rf"(?i)([?&][^=&\s]*(?:{'|'.join(SECRETS)})[^=&\s]*=)[^&#\s]*", r"\1***", text)


def mask(name: str, value: object) -> object:
    if isinstance(value, str):
        value = masked(value)
    return "***" if any(word in name.lower() for word in SECRETS) else to_jsonable_python(value, fallback=str)
