"""The application: the contract's table of routes."""

import logging
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from openai_kv.server import (
    admin,
    chat,
    completions,
    embeddings,
    generate,
    health,
    input_tokens,
    models,
    openapi,
    pins,
    snapshot,
    tokens,
)
from openai_kv.server.auth import Authenticator, load_authenticator
from openai_kv.server.context import ServerContext
from openai_kv.server.cors import Cors
from openai_kv.server.dispatch import Access, Endpoint, Resource
from openai_kv.server.forward import forwardable
from openai_kv.server.middleware import ExchangeMiddleware
from openai_kv.server.rate_limit import RateLimiter
from openai_kv.server.responses import endpoints as responses
from openai_kv.server.responses.events import OF_UPSTREAMS

logger = logging.getLogger(__name__)


def create_app(context: ServerContext) -> Starlette:
    """Raises ConfigError if the API keys can't be read."""
    settings = context.settings.server
    home = context.settings.home if context.settings.cache.tiers else None
    authenticator = load_authenticator(context.settings.auth, secret_file=home and home / "namespace-secret")
    limiter = RateLimiter(settings.rate_limit_rpm) if settings.rate_limit_rpm else None
    table = endpoints(metrics_access=Access.OPEN if settings.metrics_public else Access.KEY)
    routes = [
        Route(path, Resource(context, authenticator, limiter, path.replace(":path}", "}"), methods))
        for path, methods in table.items()
    ]
    app = Starlette(routes=routes, middleware=middleware(context))
    app.router.redirect_slashes = False
    app.router.default = Resource(context, authenticator, limiter, "unmatched", {})
    warn_if_open(context, authenticator)
    return app


def middleware(context: ServerContext) -> list[Middleware]:
    """The outermost first."""
    origins = context.settings.server.cors_origins
    cors = [Middleware(Cors, origins)] if origins else []
    return [Middleware(ExchangeMiddleware, context.exporters), *cors]


def warn_if_open(context: ServerContext, authenticator: Authenticator) -> None:
    host = context.settings.server.host
    if not authenticator.keys and host not in ("localhost", "::1") and not host.startswith("127."):
        logger.warning("listening on %s without any API key: whoever reaches it may use it", host)


def endpoints(metrics_access: Access) -> Mapping[str, Mapping[str, Endpoint]]:
    table: dict[str, dict[str, Endpoint]] = {
        "/v1/chat/completions": {"POST": Endpoint(forwardable(chat.create_chat_completion), generates=True)},
        "/v1/completions": {"POST": Endpoint(forwardable(completions.create_completion), generates=True)},
        "/v1/chat/completions/input_tokens": {"POST": Endpoint(forwardable(input_tokens.count_input_tokens))},
        "/v1/responses": {"POST": Endpoint(forwardable(responses.create_response, OF_UPSTREAMS), generates=True)},
        "/v1/responses/input_tokens": {"POST": Endpoint(forwardable(responses.count_input_tokens))},
        "/v1/responses/{id}": {
            "GET": Endpoint(responses.get_response),
            "DELETE": Endpoint(responses.delete_response),
        },
        "/v1/embeddings": {"POST": Endpoint(forwardable(embeddings.create_embeddings), generates=True)},
        "/v1/models": {"GET": Endpoint(models.list_models)},
        "/v1/models/{id:path}": {"GET": Endpoint(models.get_model)},
        "/generate": {"POST": Endpoint(generate.generate, generates=True)},
        "/tokenize": {"POST": Endpoint(tokens.tokenize)},
        "/detokenize": {"POST": Endpoint(tokens.detokenize)},
        "/tokenizer_info": {"GET": Endpoint(tokens.tokenizer_info)},
        "/health": {"GET": Endpoint(health.health, Access.OPEN)},
        "/ready": {"GET": Endpoint(health.ready, Access.OPEN)},
        "/version": {"GET": Endpoint(health.version)},
        "/metrics": {"GET": Endpoint(health.metrics, metrics_access)},
        "/cache/stats": {"GET": Endpoint(admin.cache_stats)},
        "/cache/tree": {"GET": Endpoint(snapshot.cache_tree, Access.ADMIN)},
        "/cache/blocks": {"GET": Endpoint(snapshot.cache_blocks, Access.ADMIN)},
        "/cache/reset": {"POST": Endpoint(admin.cache_reset, Access.ADMIN)},
        "/cache/pin": {"GET": Endpoint(pins.list_pins, Access.ADMIN), "POST": Endpoint(pins.create_pin, Access.ADMIN)},
        "/cache/pin/{id}": {"DELETE": Endpoint(pins.delete_pin, Access.ADMIN)},
        "/plugins": {"GET": Endpoint(admin.plugins, Access.ADMIN)},
    }
    table["/openapi.json"] = {"GET": Endpoint(openapi.describing(table))}
    return table
