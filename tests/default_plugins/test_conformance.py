"""Every eviction policy that there is stands what `openai_kv.testing` asks of plugins."""

from functools import partial
from pathlib import Path

import pytest

from openai_kv.plugins import PluginRegistry, load_plugins
from openai_kv.testing import check_policy

EXAMPLES = Path(__file__).parent.parent.parent / "plugins"


def policies(registry: PluginRegistry) -> list[str]:
    return [plugin.name for plugin in registry.plugins if plugin.hook == "register_eviction_policies"]


@pytest.mark.parametrize("name", policies(load_plugins(str(EXAMPLES))))
def test_the_policy_conforms(name: str) -> None:
    report = check_policy(partial(load_plugins(str(EXAMPLES)).create_policy, name, {}))
    print(report)  # pytest -rP shows the times
    assert report.evictions > 100
    assert max(cost.examined for cost in report.costs) < 1
