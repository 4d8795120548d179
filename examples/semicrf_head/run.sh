#!/bin/sh -e
# A semi-Markov CRF as the last layer of a tagger: loss, backward and decoding in one training loop.
python train.py
