"""Gated delta rule and short convolution of recurrent layers."""
