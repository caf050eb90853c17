import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_kv.errors import ConfigError, TierFullError
from openai_kv.tiers.tier import TierInfo
from openai_kv.tiers.valkey import ValkeyTier
from tests.fakes import expected_output
from tests.harness import make_request
from tests.tiers.inline import INFO, InlineThread, Machine
from tests.tiers.servers import PASSWORD, make_certificate, run_server

KEYS = [bytes([number]) * 32 for number in range(3)]
PROMPT = list(range(1, 43))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_server(tmp_path_factory.mktemp("valkey")) as url:
        yield url


def started(url: str, info: TierInfo = INFO) -> ValkeyTier:
    tier = ValkeyTier(url)
    tier.start(info)
    return tier


def test_models_are_kept_apart_and_records_expire(server: str) -> None:
    one, other = started(server), started(server, TierInfo("cd" * 32, 4000, 60.0))
    one.put({KEYS[0]: b"one"})
    other.put({KEYS[0]: b"other", KEYS[1]: b"more"})
    assert (one.contains(KEYS), other.contains(KEYS)) == ([True, False, False], [True, True, False])
    assert 0 < other._client.ttl(other._prefix + KEYS[0]) <= 60
    assert one._client.ttl(one._prefix + KEYS[0]) > 86000
    other.clear()
    assert (one.get(KEYS), other.get(KEYS)) == ([b"one", None, None], [None] * 3)
    for tier in (one, other):
        tier.clear()
        tier.close()


def test_a_server_without_memory_is_full(tmp_path: Path) -> None:
    with run_server(tmp_path, "--maxmemory", "1mb", "--maxmemory-policy", "noeviction") as url:
        tier = started(url)
        with pytest.raises(TierFullError, match="maxmemory"):
            tier.put({key: bytes(2**20) for key in KEYS})
        tier.close()


def test_tls_and_password(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = str(nobody.getsockname()[1])
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate))
    with run_server(tmp_path, "--tls-port", port, *files, "--tls-auth-clients", "no"):
        url = f"rediss://:{PASSWORD}@127.0.0.1:{port}/0"
        tier = started(f"{url}?ssl_ca_certs={certificate}")
        tier.put({KEYS[0]: b"record"})
        assert tier.get(KEYS[:2]) == [b"record", None]
        tier.close()
        for wrong in (url, f"rediss://:guess@127.0.0.1:{port}/0?ssl_ca_certs={certificate}"):
            stranger = started(wrong)
            with pytest.raises(Exception, match=r"CERTIFICATE_VERIFY_FAILED|WRONGPASS|invalid username-password"):
                stranger.contains(KEYS)
            stranger.close()


def test_a_url_that_is_none_and_a_missing_library_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"plugins\.valkey\.url"):
        ValkeyTier("http://localhost")
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install 'openai-kv\[valkey\]'"):
        ValkeyTier()


def answer(machine: Machine) -> int:
    before, asked = machine.runner.num_rows, make_request(PROMPT, 1)
    assert machine.run.generate(asked) == [expected_output(PROMPT, 1, 256)]
    return machine.runner.num_rows - before


def test_a_server_that_is_stopped_and_started_in_mid_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    with run_server(tmp_path) as url:
        tier = ValkeyTier(url)
        machine = Machine([tier], make_thread=lambda tier, info: InlineThread(tier, info, clock=lambda: now[0]))
        assert answer(machine) == 42
        machine.engine.reset_cache(tiers=("device",))
        assert answer(machine) == 2, "from the server"
    machine.engine.reset_cache(tiers=("device",))
    assert answer(machine) == 42
    assert machine.thread.problems["error"] == 1 and "cache tier valkey: error" in caplog.text
    with run_server(tmp_path):
        now[0] = 100.0
        machine.engine.reset_cache(tiers=("device",))
        assert answer(machine) == 42, "it was empty"
        machine.engine.reset_cache(tiers=("device",))
        assert answer(machine) == 2
    tier.close()
