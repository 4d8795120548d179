#!/bin/sh
# All reports of a sweep under their old name, into SWEEP/tracelens_analysis.
exec "${LAB:-lab}" gemm all --in-place "$@"
