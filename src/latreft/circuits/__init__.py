"""Which MLP neurons the surrogate keeps: scores, allocation over layers, statistics of the heatmaps."""
