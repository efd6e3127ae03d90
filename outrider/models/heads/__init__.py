"""Draft heads: one or two matrices and a layer that predict from the target's own states."""
