"""Operations on tensors. Each has a torch reference and a Triton form side by side; one function
per operation chooses between them by the device of its input. It imports the Triton form when that
runs, because a CPU installation has no Triton."""
