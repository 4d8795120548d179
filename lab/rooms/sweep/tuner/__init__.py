"""What to set: from a sweep to the configuration file of NCCL's tuner plugin or of RCCL's tuner.

observe: what each class of collectives cost in each run; judge: what the runs prove; file: the rows; verify:
whether a run under the file did what it says. Sources: NVIDIA/nccl `ext-tuner/example`, ROCm/rocm-systems
`projects/rccl` (its tuner reads the same columns).
"""
