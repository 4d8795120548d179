# Workloads without a GPU: torch for the CPU. `lab images build cpu-torch` builds it: it first puts the wheel of lab into
# build/images/dist and the torch that this host's pip finds into build/images/wheelhouse.
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS pip
RUN python3 -m venv /opt/pip

FROM ${BASE_IMAGE}
ENTRYPOINT []
ENV PATH=/opt/lab/bin:$PATH

# shared: lock
# The certificate is optional, for networks whose proxy has its own certificate authority.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_DEFAULT_TIMEOUT=60
RUN --mount=type=bind,from=pip,source=/opt/pip,target=/opt/pip \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=bind,source=images/cpu/workload.lock,target=/mnt/requirements.lock \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m venv --without-pip /opt/lab \
    && /opt/pip/bin/pip --python /opt/lab/bin/python install --progress-bar off --require-hashes --no-deps -r /mnt/requirements.lock \
# end of lock
    && find /opt/lab/lib -depth -type d -name tests -exec rm -rf {} +

# torch is pinned by version, not by hash: the CPU build and the CUDA build of one version are different files.
RUN --mount=type=bind,from=pip,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,source=build/images/wheelhouse/cpu-torch,target=/mnt/wheelhouse \
    /opt/pip/bin/pip --python /opt/lab/bin/python install --no-deps --no-index --no-cache-dir /mnt/wheelhouse/*.whl \
    && /opt/pip/bin/pip --python /opt/lab/bin/python check \
    # Remove its tests and its headers, which only a compiler needs: a quarter of it.
    && find /opt/lab/lib -depth -type d \( -path '*/torch/test' -o -path '*/torch/include' -o -path '*/torch/share/cmake' \) -exec rm -rf {} + \
    && find /opt/lab/lib -type f -path '*/torch/bin/*' ! -name torch_shm_manager -delete \
    && python -c 'import torch; assert torch.version.cuda is None, "this torch is a CUDA build"'

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
LABEL org.opencontainers.image.title="lab/cpu-torch" \
      org.opencontainers.image.version="${LAB_VERSION}" \
      org.opencontainers.image.revision="${LAB_REVISION}" \
      org.opencontainers.image.source="${LAB_SOURCE}" \
      org.opencontainers.image.created="${LAB_CREATED}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      lab.wheel.sha256="${LAB_WHEEL_SHA256}" \
      lab.lock.sha256="${LAB_LOCK_SHA256}"
# end of labels
