#!/bin/sh -e
# Read a trace: first whether it is whole, then where the time goes. Any trace of yours takes the place of trace.json.gz.
[ -e trace.json.gz ] || python record.py trace.json.gz
lab inspect trace.json.gz
lab analyze trace.json.gz -o page
ls page
