#!/bin/sh
# Analyse RUN anew: nsys' own reports of its captures go to results/nsight_profiles/stats_reports in it
# (for a recording that lab did not make: in experiments/NAME_analysis).
exec "${LAB:-lab}" analyze "$@"
