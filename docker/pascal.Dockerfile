# GTX 10xx (sm_61): torch 1.12.1 runs its sm_60 code there; its wheel brings the CUDA libraries. No triton, no compiler.
# `lab images build pascal` builds it: it puts the wheel of lab into build/images/dist first.
ARG BASE_IMAGE=python:3.10-slim-bookworm

FROM ${BASE_IMAGE} AS pip
RUN python3 -m venv /opt/pip

FROM ${BASE_IMAGE}
ENTRYPOINT []
ENV PATH=/opt/lab/bin:$PATH \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    CUDA_DEVICE_ORDER=PCI_BUS_ID

# shared: lock
# The certificate is optional, for networks whose proxy has its own certificate authority.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_DEFAULT_TIMEOUT=60
RUN --mount=type=bind,from=pip,source=/opt/pip,target=/opt/pip \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=bind,source=images/pascal/requirements.lock,target=/mnt/requirements.lock \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m venv --without-pip /opt/lab \
    && /opt/pip/bin/pip --python /opt/lab/bin/python install --progress-bar off --require-hashes --no-deps -r /mnt/requirements.lock \
# end of lock
    # Remove tests and headers, which only a compiler needs.
    && find /opt/lab/lib -depth -type d \( -name tests -o -path '*/torch/test' -o -path '*/torch/include' -o -path '*/torch/share/cmake' \) \
         -exec rm -rf {} + \
    && find /opt/lab/lib -type f -path '*/torch/bin/*' ! -name torch_shm_manager -delete

# With numpy 2 or a newer transformers, torch would be ignored after one warning: fail here instead.
RUN python -c 'import torch, transformers; assert "sm_60" in torch._C._cuda_getArchFlags() and transformers.is_torch_available()'

# For images built on this one: pip refuses what would replace torch, such as bitsandbytes or a newer accelerate.
RUN --mount=type=bind,source=images/pascal/requirements.lock,target=/mnt/requirements.lock \
    mkdir -p /usr/share/lab \
    && sed -n 's/^\([A-Za-z0-9._-]*==[^ ;\\]*\).*/\1/p' /mnt/requirements.lock > /usr/share/lab/constraints.txt \
    && grep -qx torch==1.12.1 /usr/share/lab/constraints.txt
ENV PIP_CONSTRAINT=/usr/share/lab/constraints.txt

# shared: wheel
# Last, so that an edit of lab rebuilds only this.
# hadolint ignore=DL3003
RUN --mount=type=bind,from=pip,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,source=build/images/dist,target=/mnt/dist \
    cd /mnt/dist && sha256sum -c SHA256SUMS \
    && /opt/pip/bin/pip --python /opt/lab/bin/python install --no-deps --no-index --no-cache-dir ./*.whl \
    && install -D -m 644 SHA256SUMS /usr/share/lab/SHA256SUMS
WORKDIR /out
USER 1000:1000
CMD ["lab", "--help"]
# end of wheel

# shared: labels
ARG LAB_VERSION
ARG LAB_REVISION
ARG LAB_SOURCE
ARG LAB_CREATED
ARG BASE_IMAGE
ARG LAB_WHEEL_SHA256
ARG LAB_LOCK_SHA256
LABEL org.opencontainers.image.title="lab/pascal" \
      org.opencontainers.image.version="${LAB_VERSION}" \
      org.opencontainers.image.revision="${LAB_REVISION}" \
      org.opencontainers.image.source="${LAB_SOURCE}" \
      org.opencontainers.image.created="${LAB_CREATED}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      lab.wheel.sha256="${LAB_WHEEL_SHA256}" \
      lab.lock.sha256="${LAB_LOCK_SHA256}"
# end of labels
