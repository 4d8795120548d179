# Analysis and reports: everything lab needs after the steps, without torch, compiler or pip.
# `lab images build cpu` builds it: it puts the wheel of lab and its checksum into build/images/dist first.
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
    --mount=type=bind,source=images/cpu/requirements.lock,target=/mnt/requirements.lock \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m venv --without-pip /opt/lab \
    && /opt/pip/bin/pip --python /opt/lab/bin/python install --progress-bar off --require-hashes --no-deps -r /mnt/requirements.lock \
# end of lock
    # Remove the libraries' tests, headers and sources, a sixth of what was installed; of Arrow the server and the S3 client,
    # which lab never calls, and copies of its libraries; of matplotlib the PDF fonts.
    && find /opt/lab/lib -depth -type d \( -name tests -o -path '*/pyarrow/include' -o -path '*/pyarrow/src' -o -name sample_data \
         -o -path '*/mpl-data/fonts/afm' -o -path '*/mpl-data/fonts/pdfcorefonts' \) -exec rm -rf {} + \
    && find /opt/lab/lib -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.a' -o -path '*/pyarrow/*_flight*' \
         -o -path '*/pyarrow/libarrow_s3*' -o -path '*/pyarrow/_s3fs*' -o -path '*/pyarrow/libarrow_python*.so' \
         -o -path '*/pyarrow/libarrow_python*.so.*.*' \) -delete

# What remains must still work.
RUN python -c 'import pandas, openpyxl, pyarrow.compute, pyarrow.parquet, matplotlib.pyplot as p; p.plot([0, 1]); p.savefig("/tmp/x.svg"); p.savefig("/tmp/x.png")' \
    && rm -rf /tmp/* /root/.config /root/.cache/matplotlib

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
LABEL org.opencontainers.image.title="lab/cpu" \
      org.opencontainers.image.version="${LAB_VERSION}" \
      org.opencontainers.image.revision="${LAB_REVISION}" \
      org.opencontainers.image.source="${LAB_SOURCE}" \
      org.opencontainers.image.created="${LAB_CREATED}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      lab.wheel.sha256="${LAB_WHEEL_SHA256}" \
      lab.lock.sha256="${LAB_LOCK_SHA256}"
# end of labels
