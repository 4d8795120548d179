#!/bin/sh
# The sweep under its old name: -c channels, -t threads, -f config, -p ranks, -o folder, -s skip what is there.
exec "${LAB:-lab}" run sweep "$@"
