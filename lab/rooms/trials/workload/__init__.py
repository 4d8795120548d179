"""What runs beside the GPU: a trial, a replay, a GPU's checks."""
