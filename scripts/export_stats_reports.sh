#!/bin/sh
# Analyse RUN again: nsys' own reports of its captures go to results/nsight_profiles/stats_reports in it
# (in experiments/NAME_analysis for a recording that lab did not make).
exec "${LAB:-lab}" analyze "$@"
