#!/bin/sh -e
# What a sweep over two nodes would submit, without submitting it. On the cluster leave out --dry-run; --detach lets
# you log out, and `lab runs show RUN` and `lab run --resume RUN` find the run again.
lab run --dry-run --engine slurm --gpus 8 --vendor nvidia --sbatch partition=gpu --sbatch account=team \
  sweep --nodes 2 -c 28,42,56,70 -t 256,512
