import logging

import pytest

from openai_kv.engine.async_engine import EngineState
from tests.server.serving import CHAT, check_error, site

ADMIN = {"authorization": "Bearer root"}
USER = {"authorization": "bearer alice"}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice, bob")
    monkeypatch.setenv("OPENAI_KV_ADMIN_KEY", "root")


async def test_unknown_urls_and_methods() -> None:
    async with site() as server:
        for path in ("/", "/v2", "/v1/chat/completions/", "/health/", "/v1/models/", "/v1/moderations"):
            check_error(await server.client.get(path), 404, "unknown_url")
        for method in ("GET", "PUT", "DELETE", "OPTIONS", "BREW"):
            response = await server.client.request(method, "/v1/chat/completions")
            check_error(response, 405, "method_not_supported")
            assert response.headers["allow"] == "POST"
        response = await server.client.post("/health")
        check_error(response, 405, "method_not_supported")
        assert response.headers["allow"] == "GET, HEAD"
        for path in ("/health", "/v1/models", "/cache/stats"):
            assert (await server.client.head(path)).status_code == 200
        await server.exported()
        assert {stats.route for stats in server.exporter.http} >= {"unmatched", "/v1/chat/completions", "/health"}
        assert {stats.method for stats in server.exporter.http} >= {"OTHER", "OPTIONS"}


async def test_the_log_names_a_path_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as server:
        with caplog.at_level("INFO"):
            await server.client.post("/chat/completions")
    assert "POST /chat/completions" in caplog.text


@pytest.mark.usefixtures("keys")
async def test_keys() -> None:
    async with site() as server:
        get = server.client.get
        missing = await get("/v1/models")
        error = check_error(missing, 401, "invalid_api_key")
        assert error["type"] == "authentication_error"
        assert missing.headers["www-authenticate"] == "Bearer"
        wrong = check_error(await get("/v1/models", headers={"authorization": "Bearer carol"}), 401, "invalid_api_key")
        assert wrong["message"] != error["message"] and "carol" not in wrong["message"]
        for authorization in ("Basic alice", "alice", "Bearer ", "Bearer alic\xe9"):
            raw = [(b"authorization", authorization.encode("latin-1"))]
            check_error(await server.client.get("/v1/models", headers=raw), 401, "invalid_api_key")
        for headers in (USER, ADMIN, {"authorization": "Bearer bob"}):
            assert (await get("/v1/models", headers=headers)).status_code == 200
        assert (await get("/health")).status_code == (await get("/ready")).status_code == 200
        check_error(await get("/plugins", headers=USER), 403, "admin_key_required")
        assert (await get("/plugins", headers=ADMIN)).status_code == 200
        check_error(await get("/metrics"), 401, "invalid_api_key")


@pytest.mark.usefixtures("keys")
async def test_order_of_checks() -> None:
    async with site() as server:
        request = server.client.request
        check_error(await request("GET", "/nowhere"), 401, "invalid_api_key")
        check_error(await request("GET", "/nowhere", headers=USER), 404, "unknown_url")
        check_error(await request("PUT", "/cache/reset"), 401, "invalid_api_key")
        check_error(await request("PUT", "/cache/reset", headers=USER), 405, "method_not_supported")
        server.context.lifecycle.drain_deadline = 0.0
        check_error(await request("POST", "/cache/reset", headers=USER), 403, "admin_key_required")
        check_error(await request("POST", "/cache/reset", headers=ADMIN, content=b"x" * 9), 503, "draining")
        server.context.lifecycle.drain_deadline = None
        plain = {**USER, "content-type": "text/plain"}
        check_error(await request("POST", "/tokenize", headers=plain, content=b"{"), 415, "unsupported_content_type")
        check_error(await request("POST", "/tokenize", headers=USER, content=b"{"), 400, "invalid_json")
        server.engine.state = EngineState.LOADING
        body = {**CHAT, "temperature": 9}
        refused = await request("POST", "/v1/chat/completions", headers=USER, json={**body, "model": "other"})
        check_error(refused, 404, "model_not_found", "model")
        loading = await request("POST", "/v1/chat/completions", headers=USER, json=body)
        check_error(loading, 503, "model_loading")
        assert loading.headers["retry-after"] == "5"
        server.engine.state = EngineState.READY
        refused = await request("POST", "/v1/chat/completions", headers=USER, json=body)
        check_error(refused, 400, "decimal_above_max_value", "temperature")


async def test_headers_with_bounds_are_checked_on_every_route_with_a_body() -> None:
    bodies = {"/v1/chat/completions": CHAT, "/tokenize": {"prompt": "a"}, "/cache/reset": {}}
    too_long = ("x-session-id", "X-Session-ID", ["", "x" * 129])
    no_number = (
        "x-request-timeout",
        "X-Request-Timeout",
        ["", "0", "-1", "soon", "nan", "inf", "1_0", "1e999", "\N{ARABIC-INDIC DIGIT ONE}"],
    )
    async with site() as server:
        for path, body in bodies.items():
            for name, param, values in (too_long, no_number):
                for value in values:
                    refused = await server.client.post(path, json=body, headers=[(name.encode(), value.encode())])
                    check_error(refused, 400, "invalid_value", param)
            for name, values in (("x-session-id", ["x" * 128]), ("x-request-timeout", ["60", ".5e2", "1e9"])):
                for value in values:
                    assert (await server.client.post(path, json=body, headers={name: value})).status_code == 200
        bad = {"x-request-timeout": "soon"}
        unknown = await server.client.post("/tokenize", json={"prompt": "a", "model": "other"}, headers=bad)
        check_error(unknown, 404, "model_not_found", "model")
        check_error(await server.client.post("/tokenize", content=b"{", headers=bad), 400, "invalid_json")


@pytest.mark.usefixtures("keys")
async def test_a_key_sees_only_its_own_cache() -> None:
    async def cached(key: str, **changes: object) -> int:
        response = await server.client.post(
            "/v1/chat/completions", json={**CHAT, **changes}, headers={"authorization": f"Bearer {key}"}
        )
        count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    async with site() as server:
        assert [await cached("alice"), await cached("bob")] == [0, 0]
        assert await cached("alice") > 0
        assert await cached("alice", cache_salt="x") == 0
        assert await cached("bob", cache_salt="x") == 0
        assert await cached("bob", cache_salt="x") > 0
    async with site(auth__isolate_cache_by_key="false") as server:
        assert await cached("alice") == 0
        assert await cached("bob") > 0
        assert await cached("bob", cache_salt="x") == 0
        assert await cached("alice", cache_salt="x") > 0


async def test_without_keys_any_authorization_is_ignored() -> None:
    async with site(server__metrics_public="true") as server:
        assert (await server.client.get("/plugins", headers=USER)).status_code == 200
        response = await server.client.get("/metrics")
        assert response.text == "up 1\n"
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_request_ids() -> None:
    async with site() as server:
        for path in ("/health", "/nowhere"):
            response = await server.client.get(path, headers={"x-request-id": "my.id-1"})
            assert response.headers["x-request-id"] == "my.id-1"
        for bad in ("a b", "x" * 129, "ü"):
            headers = [(b"x-request-id", bad.encode())]
            response = await server.client.get("/health", headers=headers)
            assert response.headers["x-request-id"].startswith("req_")
            assert len(response.headers["x-request-id"]) == 36


async def test_our_own_fault_says_only_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise RuntimeError("secret detail")

    async with site() as server:
        object.__setattr__(server.context, "get_tokenizer", broken)
        response = await server.chat()
        error = check_error(response, 500, "internal_error")
        assert error["type"] == "server_error" and "secret" not in response.text
        assert response.headers["x-request-id"] in error["message"]
        assert "secret detail" in caplog.text


async def test_a_failing_step_is_an_error_of_its_requests_only(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as server:
        server.runner.inner.fail_at = {1}
        response = await server.chat()
        message = check_error(response, 500, "internal_error")["message"]
        assert message == f"The engine failed on this request ({response.headers['x-request-id']})."
        assert (await server.chat()).status_code == 200
        await server.settle()


async def test_prompts_and_keys_are_never_logged(caplog: pytest.LogCaptureFixture, keys: None) -> None:
    caplog.set_level(logging.DEBUG, "openai_kv")
    async with site(headers=USER) as server:
        assert (await server.chat()).status_code == 200
        assert (await server.chat(cache_salt="pepper", top_p=7)).status_code == 400
    assert "/v1/chat/completions 200" in caplog.text
    assert caplog.messages[-1].endswith("upstream=- error=decimal_above_max_value")
    assert not any(word in caplog.text for word in ("alice", "pepper", "cache?"))


async def test_an_open_server_warns(caplog: pytest.LogCaptureFixture) -> None:
    async with site(server__host="0.0.0.0"):
        assert "without any API key" in caplog.text
