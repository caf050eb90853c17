import asyncio

from openai_kv.engine.async_engine import EngineState
from tests.server.serving import check_error, site


async def test_ready() -> None:
    async with site() as server:
        assert (await server.client.get("/health")).json() == {"status": "ok"}
        assert (await server.client.get("/ready")).json() == {"status": "ready"}
        version = (await server.client.get("/version")).json()
        assert set(version) == {"version", "api", "python", "torch", "transformers", "model"}
        models = (await server.client.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["fake"]
        assert (await server.client.get("/v1/models/fake")).json() == models["data"][0]
        check_error(await server.client.get("/v1/models/a/b"), 404, "model_not_found")


async def test_loading_draining_dead() -> None:
    async with site() as server:
        for state, name, code in (
            (EngineState.LOADING, "loading", "model_loading"),
            (EngineState.DEAD, "dead", "engine_dead"),
        ):
            server.engine.state = state
            response = await server.client.get("/ready")
            assert (response.status_code, response.json()["status"]) == (503, name)
            assert response.json()["error"]["code"] == code and response.headers["retry-after"]
            alive = (await server.client.get("/health")).status_code
            assert alive == (503 if state is EngineState.DEAD else 200)
            check_error(await server.client.get("/cache/stats"), 503, code)
        server.engine.state = EngineState.READY
        server.context.lifecycle.drain_deadline = 0.0
        response = await server.client.get("/ready")
        assert (response.status_code, response.json()["status"]) == (503, "draining")
        assert (await server.client.get("/health")).status_code == 200
        assert (await server.client.get("/cache/stats")).status_code == 200
        refused = await server.chat()
        check_error(refused, 503, "draining")
        assert refused.headers["connection"] == "close" and refused.headers["retry-after"] == "1"


async def test_an_engine_that_dies_fails_its_requests_in_the_envelope() -> None:
    async with site() as server:
        server.runner.hold()
        request = asyncio.create_task(server.chat())
        await server.step_entered()
        server.engine.on_dead(RuntimeError("gone"))
        check_error(await request, 503, "engine_dead")
        assert (await server.client.get("/health")).status_code == 503
