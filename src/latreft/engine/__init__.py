"""How hidden states and logits are computed. Methods and attacks ask through :mod:`latreft.engine.interface`."""
