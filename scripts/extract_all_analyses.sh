#!/bin/sh
# Questions a to e of every capture below RUN, with their checks; nothing is written unless --out says where.
exec "${LAB:-lab}" nsys answers "$@"
