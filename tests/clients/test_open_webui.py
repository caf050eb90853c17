"""Open WebUI, driven in a headless Chromium as somebody would use it: choose the model, ask, ask again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.programs import environment, find, free_port, running
from tests.clients.service import FRANCE, Service

pytestmark = [pytest.mark.clients, pytest.mark.model, pytest.mark.filterwarnings("default")]
SCREENSHOT = Path(__file__).parent.parent.parent / "docs" / "images" / "open-webui.png"
BROWSER = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PATIENCE = 120_000  # milliseconds


@pytest.fixture
def web_ui(service: Service, tmp_path: Path) -> Iterator[str]:
    """Its URL. Nobody signs in, no hub is asked, and the model hears only what is typed."""
    port = free_port()
    settings = {
        "OPENAI_API_BASE_URL": service.base_url,
        "OPENAI_API_KEY": "none",
        "DEFAULT_MODEL_METADATA": '{"capabilities": {"builtin_tools": false}}',
        "DEFAULT_MODEL_PARAMS": '{"temperature": 0}',
        "DATA_DIR": str(tmp_path),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "of this test",
        "OFFLINE_MODE": "True",
        "ENABLE_OLLAMA_API": "False",
        "ENABLE_TITLE_GENERATION": "False",
        "ENABLE_TAGS_GENERATION": "False",
        "ENABLE_FOLLOW_UP_GENERATION": "False",
        "RAG_EMBEDDING_ENGINE": "openai",  # its default is fetched from a hub
    }
    command = [find("open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with running(command, environment(**settings), f"{url}/health", tmp_path / "log"):
        yield url


@pytest.fixture
def page(web_ui: str) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find("chromium"), args=BROWSER)
        opened = browser.new_page(viewport={"width": 1100, "height": 720})
        opened.set_default_timeout(PATIENCE)
        opened.goto(web_ui)
        yield opened
        browser.close()


def ask(page: Any, question: str) -> str:
    """Type, send, wait until the answer is all there."""
    answers = page.locator(".chat-assistant")
    before = answers.count()
    page.locator("#chat-input").click()
    page.keyboard.type(question)
    page.keyboard.press("Enter")
    page.get_by_label("Regenerate").nth(before).wait_for()
    text: str = answers.nth(before).inner_text()
    return text.strip()


def test_two_turns(page: Any, service: Service) -> None:
    page.get_by_role("button", name="Okay, Let's Go!").click()
    page.get_by_role("button", name="Selected model").click()
    page.get_by_role("option", name=service.model).click()
    first = ask(page, FRANCE)
    before = service.stats()
    second = ask(page, "And of Italy?")
    after = service.stats()
    page.screenshot(path=SCREENSHOT)
    turns = [{"role": "user", "content": FRANCE}, {"role": "assistant", "content": first}]
    assert first == service.answer()
    assert second == service.chat(*turns, {"role": "user", "content": "And of Italy?"})
    shared = service.post("/v1/chat/completions/input_tokens", model=service.model, messages=turns[:1])["input_tokens"]
    assert shared < after["hit_tokens"] - before["hit_tokens"] < after["prompt_tokens"] - before["prompt_tokens"]
