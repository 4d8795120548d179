#!/bin/sh -e
# The same fault, found twice: by the guard inside the script, and around a script that knows nothing of lab.
python train.py
lab run --quiet --output-dir out nan train -- python plain.py && exit 1 # exit code 1: the training is bad
echo "exit code of lab: $?"
