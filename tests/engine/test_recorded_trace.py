"""What an engine records, `simulate` replays with the hits the engine had."""

from pathlib import Path

from openai_kv.engine.detokenizer import Detokenizer
from openai_kv.engine.engine import Engine
from openai_kv.engine.reporter import Reporter
from openai_kv.exporting import ExporterGroup
from openai_kv.recording import TraceRecorder, open_recording
from openai_kv.request import Request, RequestInfo, SamplingParams
from openai_kv.simulate.result import Case
from openai_kv.simulate.run_case import PolicySource, run_case
from tests.fakes import FakeModelRunner
from tests.harness import Shape, build_engine
from tests.tiny_tokenizer import tiny_tokenizer
