"""Several processes that compute one model: ranks, and the collectives between them."""
