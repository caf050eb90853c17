"""From a GGUF file to a folder in transformers' format."""

import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from openai_kv.errors import ModelLoadError
from openai_kv.model_runner.loader import one_line
from openai_kv.model_runner.quiet import quiet


def convert_gguf(source: Path, target: Path) -> None:
    """Write model and tokenizer of the file `source` to the folder `target`, in bfloat16 safetensors.

    `target` appears complete or not at all. Raises ModelLoadError if transformers can't read the file.
    """
    partial = target.with_name(f"{target.name}.converting")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        # The reader's progress bar is tqdm's own and has no switch.
        with quiet(), redirect_stderr(StringIO()):
            _convert(source, partial)
        partial.replace(target)
    except Exception as error:  # transformers lets through whatever its parts raise
        raise ModelLoadError(f"can't convert {source.name}: {one_line(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert(source: Path, folder: Path) -> None:
    # Reading a GGUF through transformers takes about 15 s, safetensors about 1 s: hence once, and kept.
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True).save_pretrained(folder)
