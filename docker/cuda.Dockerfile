# NVIDIA GPUs from Turing on: torch, triton and transformers from the lock, which bring CUDA's libraries; so the base is the small
# one, and of CUDA's toolkit only nvcc and nvdisasm are added. A C compiler for what torch and triton compile at run time, Nsight
# Systems and Nsight Compute from NVIDIA's package repositories, each in one version.
# They are under NVIDIA's software license agreement, as the base's CUDA is under its own: whoever builds this image accepts it.
# `lab images build cuda --build-arg NSYS_PACKAGE= --build-arg CUDA_PACKAGES=` leaves them out, as on a base that is not NVIDIA's.
# nixnan: build your own nixnan.so and name it in NIXNAN_SO; it is mounted at run time as /opt/lab/nixnan.so.
# `lab images build cuda` builds it: it puts the wheel of lab into build/images/dist first.
ARG BASE_IMAGE=nvidia/cuda:12.8.1-base-ubuntu24.04

FROM ${BASE_IMAGE} AS system
# The versions are those of the base's distribution.
# hadolint ignore=DL3008
RUN if command -v apt-get >/dev/null; then \
      apt-get update \
      && apt-get install -y --no-install-recommends python3 python3-venv python3-dev gcc g++ ca-certificates \
      && rm -rf /var/lib/apt/lists/*; \
    fi

# From the repository of CUDA that the base names; nvcc needs the headers of its runtime.
ARG CUDA_PACKAGES="cuda-nvcc-12-8 cuda-nvdisasm-12-8 cuda-cudart-dev-12-8 nsight-compute-2025.1.1"
# hadolint ignore=DL3008,SC2086
RUN if [ -n "${CUDA_PACKAGES}" ]; then \
      apt-get update \
      && apt-get install -y --no-install-recommends ${CUDA_PACKAGES} \
      && rm -rf /var/lib/apt/lists/* \
      && ln -s /opt/nvidia/nsight-compute/*/ncu /usr/local/bin/ncu \
      && ncu --version && nvcc --version && nvdisasm --version; \
    fi

# The repository's key comes over https, its packages are signed with it. A base of another distribution names its folder.
ARG NSYS_PACKAGE=nsight-systems-cli-2025.3.1
ARG NSYS_REPOSITORY=developer.download.nvidia.com/devtools/repos/ubuntu2404
# hadolint ignore=DL3008
RUN --mount=type=secret,id=ca,target=/run/secrets/ca \
    if [ -n "${NSYS_PACKAGE}" ]; then \
      if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi \
      && from="${NSYS_REPOSITORY}/$(dpkg --print-architecture)" \
      && python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' \
           "https://$from/nvidia.pub" /usr/share/keyrings/nvidia-devtools.asc \
      && echo "deb [signed-by=/usr/share/keyrings/nvidia-devtools.asc] http://$from/ /" > /etc/apt/sources.list.d/nvidia-devtools.list \
      && apt-get update \
      && apt-get install -y --no-install-recommends "${NSYS_PACKAGE}" \
      && rm -rf /var/lib/apt/lists/* \
      && nsys --version; \
    fi

FROM system AS pip
RUN python3 -m venv /opt/pip

FROM system
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
    --mount=type=bind,source=images/cuda/requirements.lock,target=/mnt/requirements.lock \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m venv --without-pip /opt/lab \
    && /opt/pip/bin/pip --python /opt/lab/bin/python install --progress-bar off --require-hashes --no-deps -r /mnt/requirements.lock \
# end of lock
    && python -c 'import torch, triton, transformers; assert (torch.version.cuda or "").startswith("12.")'

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

ARG NSYS_PACKAGE=nsight-systems-cli-2025.3.1
ARG CUDA_PACKAGES
LABEL lab.nsys="${NSYS_PACKAGE}" \
      lab.cuda="${CUDA_PACKAGES}"

# shared: labels
ARG LAB_VERSION
ARG LAB_REVISION
ARG LAB_SOURCE
ARG LAB_CREATED
ARG BASE_IMAGE
ARG LAB_WHEEL_SHA256
ARG LAB_LOCK_SHA256
LABEL org.opencontainers.image.title="lab/cuda" \
      org.opencontainers.image.version="${LAB_VERSION}" \
      org.opencontainers.image.revision="${LAB_REVISION}" \
      org.opencontainers.image.source="${LAB_SOURCE}" \
      org.opencontainers.image.created="${LAB_CREATED}" \
      org.opencontainers.image.licenses="Apache-2.0 AND LicenseRef-NVIDIA-Software-License-Agreement" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      lab.wheel.sha256="${LAB_WHEEL_SHA256}" \
      lab.lock.sha256="${LAB_LOCK_SHA256}"
# end of labels
