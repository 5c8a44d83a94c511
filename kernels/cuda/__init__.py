"""The CUDA kernels: their sources (``*.cu``, ``*.cuh``) and the launches that run them.

Pure: describes what to launch and with which arguments. Whoever owns a device (CuPy, the emulator,
the translated PTX) carries a launch out.
"""
