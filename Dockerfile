# FlashBoot's two images:
#
#   docker build --target operator -t REGISTRY/flashboot/operator:0.1.0 .
#   docker build --target agent    -t REGISTRY/flashboot/agent:0.1.0 .      (agent, holder and door)
#   docker build --target dist     --output dist .                          (the wheel alone, for engine images)
#
# Dependencies come before sources, so a change of code rebuilds the wheel and the last layer only.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS toolchain
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ libssl-dev libxxhash-dev \
 && rm -rf /var/lib/apt/lists/*
COPY requirements/build.txt /requirements/
RUN python3 -m venv /opt/build \
 && /opt/build/bin/python -m pip install --no-cache-dir --require-hashes -r /requirements/build.txt

# Built twice: first the C++ alone, between empty packages, into a build folder that stays; then the wheel, which finds
# everything compiled. So a change of Python does not compile C++.
FROM toolchain AS wheel
WORKDIR /src
ENV PATH=/opt/build/bin:$PATH
ARG WHEEL="python -m pip wheel --no-deps --no-build-isolation --config-settings=build-dir=/native --wheel-dir"
COPY pyproject.toml LICENSE ./
COPY csrc csrc
RUN mkdir -p operator/flashboot_operator agent/flashboot_agent \
 && touch README.md \
 && ${WHEEL} /unused . \
 && rm -r /unused
COPY README.md .
COPY operator operator
COPY agent agent
RUN ${WHEEL} /wheels .

FROM scratch AS dist
COPY --from=wheel /wheels/ /

FROM ${BASE} AS runtime
RUN groupadd --gid 65532 flashboot \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin flashboot
ENV PATH=/opt/flashboot/bin:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin PYTHONUNBUFFERED=1
RUN python3 -m venv /opt/flashboot

FROM runtime AS operator
COPY requirements/operator.txt /requirements/
RUN python -m pip install --no-cache-dir --require-hashes -r /requirements/operator.txt
COPY --from=wheel /wheels /wheels
RUN python -m pip install --no-cache-dir --no-deps /wheels/*.whl
USER 65532:65532
CMD ["flashboot-operator"]

FROM runtime AS agent
COPY requirements/agent.txt /requirements/
RUN python -m pip install --no-cache-dir --require-hashes -r /requirements/agent.txt
COPY --from=wheel /wheels /wheels
RUN python -m pip install --no-cache-dir --no-deps /wheels/*.whl
USER 65532:65532
CMD ["flashboot-agent"]
