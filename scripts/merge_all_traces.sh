#!/bin/sh
# All ranks of each configuration on one timeline, into SWEEP/merged_traces, as the original sweep writes it:
# -n only so many ranks, --trace-name the file of each rank.
exec "${LAB:-lab}" gemm merge --in-place --format original "$@"
