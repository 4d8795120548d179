#!/bin/sh -e
# A sweep of two channel counts with two ranks. Without GPUs the ranks are processes on this CPU; on a GPU box add
# `--image cuda` (or rocm70), more channels and `--ranks 8`.
lab run --quiet --output-dir out sweep -c 28,42 -t 256 --ranks 2
ls out
