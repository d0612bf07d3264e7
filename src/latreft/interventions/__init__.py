"""What is done to hidden states and weights: perturbations, the ReFT edit, pruned surrogates."""
