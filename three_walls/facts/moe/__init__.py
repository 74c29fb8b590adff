"""MoE layers of the representative step: what router, dispatch, experts and combine take in each layer."""
