#!/bin/sh -e
# What changed between two versions of a model, and is the new one slower? base/ and head/ hold three processes each,
# recorded on an H200 by record.py. `lab check` is made for CI: exit code 0 passes, 1 is slower, 3 is undecided.
lab diff base/run1.json.gz head/run1.json.gz \
  --repeat-a base/run2.json.gz --repeat-a base/run3.json.gz \
  --repeat-b head/run2.json.gz --repeat-b head/run3.json.gz
lab check base head --max-slowdown 2% && exit 1
echo "exit code of lab check: $?"
