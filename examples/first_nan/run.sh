#!/bin/sh -e
# Find the module that makes the first NaN of a transformers model.
python watch.py
