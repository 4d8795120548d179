#!/bin/sh
# The sweep under its old name: -c channels, -t threads, -f config, -p ranks, -s skip what is there; -o folder
# is an option of `lab run` and goes before the sweep.
folder='' left=$#
while [ "$left" -gt 0 ]; do
  case $left,$1 in
    1,-o | 1,--output-dir) set -- "$@" "$1" && shift && left=0 ;; # without its folder: lab says so
    *,-o | *,--output-dir) folder=$2 && shift 2 && left=$((left - 2)) ;;
    *) set -- "$@" "$1" && shift && left=$((left - 1)) ;;
  esac
done
exec "${LAB:-lab}" run ${folder:+-o "$folder"} sweep "$@"
