# docker build -t openai-kv .
# docker run -p 8000:8000 -v openai-kv-models:/var/lib/openai-kv/models openai-kv
# For CUDA (the wheels bring their libraries; run it with --gpus all):
# docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 -t openai-kv:cuda .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS builder
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==2.13.0
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY openai_kv openai_kv
RUN pip install --no-cache-dir .
# The operator holds code for every instruction set and picks one when it runs, so that the image runs on any machine.
RUN mkdir -p /var/lib/openai-kv/models && python -c "from pathlib import Path; \
from openai_kv.model_runner.operator_build import build_operator; \
build_operator(Path('/var/lib/openai-kv/operators'), print)"

FROM python:${PYTHON}-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/openai-kv openai-kv
COPY --from=builder /opt/venv /opt/venv
COPY --from=builder --chown=10001 /var/lib/openai-kv /var/lib/openai-kv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/var/lib/openai-kv/models/huggingface \
    OPENAI_KV_HOME=/var/lib/openai-kv \
    OPENAI_KV_SERVER__HOST=0.0.0.0
WORKDIR /var/lib/openai-kv
USER 10001
VOLUME /var/lib/openai-kv/models
EXPOSE 8000
# The first start fetches and converts the model.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('OPENAI_KV_SERVER__PORT', 8000)}/ready\")"]
ENTRYPOINT ["openai-kv"]
CMD ["serve"]
