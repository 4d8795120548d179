#!/bin/sh -e
# An image of your own: what its containers would get, without building or running anything.
# `lab images build mine` builds it; on a GPU box leave out --gpus none.
export LAB_IMAGES="$PWD/images"
lab images list
lab run --dry-run --image mine --gpus none sweep -c 28,42 --ranks 2
