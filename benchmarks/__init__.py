"""The authors' lab: timings of single steps and kernels. It uses the package; nothing uses it."""
