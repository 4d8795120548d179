# AMD Instinct on ROCm 7.0. torch, triton and RCCL are the base's own; nothing installed here may replace them.
# `lab images build rocm70` builds it: it puts the wheel of lab into build/images/dist first.
ARG BASE_IMAGE=rocm/pytorch:rocm7.0_ubuntu24.04_py3.12_pytorch_release_2.8.0

FROM ${BASE_IMAGE}
ENTRYPOINT []
# The base may mark its Python as managed by the distribution.
ENV PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_ROOT_USER_ACTION=ignore

# AMD's profilers, from the repository of ROCm that the base names: one that is there already stays.
ARG ROCPROF_PACKAGES="rocprofiler-sdk rocprofiler-compute"
# hadolint ignore=DL3008,SC2086
RUN if [ -n "${ROCPROF_PACKAGES}" ] && command -v apt-get >/dev/null; then \
      apt-get update \
      && apt-get install -y --no-install-recommends ${ROCPROF_PACKAGES} \
      && rm -rf /var/lib/apt/lists/*; \
    fi
ENV PATH=/opt/rocm/bin:$PATH

# shared: lock
# The certificate is optional, for networks whose proxy has its own certificate authority.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_DEFAULT_TIMEOUT=60
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=bind,source=images/rocm70/requirements.lock,target=/mnt/requirements.lock \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m pip install --progress-bar off --require-hashes --no-deps -r /mnt/requirements.lock \
# end of lock
    && python3 -c 'import torch; assert torch.version.hip, "the ROCm torch of the base was replaced"'

# shared: wheel
# Last, so that an edit of lab rebuilds only this.
# hadolint ignore=DL3003
RUN --mount=type=bind,source=build/images/dist,target=/mnt/dist \
    cd /mnt/dist && sha256sum -c SHA256SUMS \
    && python3 -m pip install --no-deps --no-index --no-cache-dir ./*.whl \
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
LABEL org.opencontainers.image.title="lab/rocm70" \
      org.opencontainers.image.version="${LAB_VERSION}" \
      org.opencontainers.image.revision="${LAB_REVISION}" \
      org.opencontainers.image.source="${LAB_SOURCE}" \
      org.opencontainers.image.created="${LAB_CREATED}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      lab.wheel.sha256="${LAB_WHEEL_SHA256}" \
      lab.lock.sha256="${LAB_LOCK_SHA256}"
# end of labels
