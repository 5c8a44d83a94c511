"""Runs the compiler's own PTX on a host: parsed, translated to C++, executed by the emulator.

The emulator runs the sources and so cannot see a mistake inside an inline instruction or in what
the compiler made of them; this runs what the compiler made.
"""
