from openai_kv.request import SamplingParams
from openai_kv.server.sampling import sampling_params


def test_defaults_give_way_to_what_is_asked() -> None:
    defaults = {"temperature": 0.2, "top_k": 5}
    params = sampling_params({"top_k": 7, "stop": "x", "logit_bias": {3: -1.0}}, 10, defaults)
    assert params == SamplingParams(max_tokens=10, temperature=0.2, top_k=7, stop=("x",), logit_bias={3: -1.0})
    assert sampling_params({"stop": ["a", "b"]}, 1, {}).stop == ("a", "b")
