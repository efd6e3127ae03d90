"""`python -m benchmarks never-slower`: adaptive drafting, plain decoding and fixed chains."""
