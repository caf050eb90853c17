import pytest

from openai_kv.config import load_settings
from openai_kv.errors import ConfigError
from tests.server.serving import CHAT, check_error, site

PAGE = {"origin": "https://chat.example.com"}
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-session-id"}
PATH = "/v1/chat/completions"


async def test_off_by_default() -> None:
    async with site() as server:
        refused = await server.client.options(PATH, headers={**PAGE, **PREFLIGHT})
        check_error(refused, 405, "method_not_supported")
        assert not any(name.startswith("access-control") for name in (await server.chat()).headers)


async def test_a_page_of_a_known_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice")
    async with site(server__cors_origins=PAGE["origin"]) as server:
        preflight = await server.client.options(PATH, headers={**PAGE, **PREFLIGHT})
        assert preflight.status_code == 200 and preflight.headers["x-request-id"]
        assert preflight.headers["access-control-allow-origin"] == PAGE["origin"]
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-headers"] == "authorization,x-session-id"
        assert "access-control-allow-credentials" not in preflight.headers
        answer = await server.client.post(PATH, json=CHAT, headers={**PAGE, "authorization": "Bearer alice"})
        refused = await server.client.post(PATH, json=CHAT, headers=PAGE)
        check_error(refused, 401, "invalid_api_key")
        for response in (answer, refused):
            assert response.headers["access-control-allow-origin"] == PAGE["origin"]
            exposed = response.headers["access-control-expose-headers"].lower()
            assert {"x-request-id", "x-openai-kv-cache-hit-tokens", "retry-after"} <= set(exposed.split(", "))


async def test_any_other_origin() -> None:
    async with site(server__cors_origins=PAGE["origin"]) as server:
        for headers in ({**PAGE, "origin": "https://evil.example"}, {**PAGE, "access-control-request-method": "PUT"}):
            check_error(
                await server.client.options(PATH, headers={**PREFLIGHT, **headers}), 400, "invalid_value", "Origin"
            )
        check_error(await server.client.options(PATH), 405, "method_not_supported")
        answer = await server.client.post(PATH, json=CHAT, headers={"origin": "https://evil.example"})
        assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers


async def test_every_origin_but_never_with_credentials() -> None:
    async with site(server__cors_origins="*") as server:
        for answer in (
            await server.client.options(PATH, headers={**PAGE, **PREFLIGHT, "cookie": "a=b"}),
            await server.client.post(PATH, json=CHAT, headers={**PAGE, "cookie": "a=b"}),
        ):
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["https://a.example/", "a.example", "https://A.example", "https://*.example", "null"]
)
def test_what_no_browser_sends_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.cors_origins"):
        load_settings({"server.cors_origins": origin})
