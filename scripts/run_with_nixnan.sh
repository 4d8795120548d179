#!/bin/sh
# One experiment (or priority, all) under your nixnan.so, in the cuda image unless LAB_RUN gives other flags.
LAB_RUN=${LAB_RUN-"--image cuda"}
# shellcheck disable=SC2086  # these are several words
exec "${LAB:-lab}" run $LAB_RUN nixnan "$@"
