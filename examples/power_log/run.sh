#!/bin/sh -e
# How many joules does a log of nvidia-smi hold? power.csv is from an H200 that multiplied matrices for six seconds:
# nvidia-smi --query-gpu=timestamp,index,power.draw,utilization.gpu --format=csv -lms 100 > power.csv
lab kernels energy power.csv --from "2026/11/29 08:48:57.500" --to "2026/11/29 08:49:02.500"
lab kernels energy power.csv --from "2026/11/29 08:48:57.500" --to "2026/11/29 08:49:02.500" --idle 0 --json
