#!/bin/sh
# All ranks of each configuration on one timeline, into SWEEP/merged_traces.
exec "${LAB:-lab}" gemm merge --in-place "$@"
