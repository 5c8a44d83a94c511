"""Runs the CUDA kernels on a host without a card: the same sources, compiled by a C++ compiler."""
