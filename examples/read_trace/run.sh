#!/bin/sh -e
# Read a trace: first whether it is whole, then where the time goes. Any recording of yours can take its place.
lab inspect step.json.gz
lab analyze step.json.gz -o page
ls page
