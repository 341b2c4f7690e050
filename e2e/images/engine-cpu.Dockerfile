# The rack's engine image: SGLang on a CPU. Its Python environment is not copied in here: the seed store links it into
# the unpacked layer that brings the marker file (setup_env/images.py), which saves gigabytes and minutes.
FROM docker.io/library/python:3.11-slim-bookworm
# In the base all times are zero, so that its compiled modules do not count: each start would compile many anew.
RUN python3 -m compileall -q /usr/lib/python3.11
RUN useradd --uid 1000 --user-group --create-home engine
COPY engine-marker /opt/engine/.marker
COPY wheels /wheels
COPY startup /opt/startup
RUN python3 -m pip install --no-cache-dir --no-deps --no-index --target /opt/flashboot /wheels/*.whl
ENV PATH=/opt/engine/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/startup:/opt/flashboot \
    PYTHONUNBUFFERED=1 \
    SGLANG_USE_CPU_ENGINE=1 \
    HF_HUB_OFFLINE=1
USER 1000:1000
WORKDIR /home/engine
CMD ["python", "-m", "sglang.launch_server", "--help"]
