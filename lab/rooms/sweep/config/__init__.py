"""Every setting of the sweep room: the sweep itself (`sweep`) and the training run it measures (`train`)."""
