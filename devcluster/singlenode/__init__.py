"""A Kubernetes of one machine, from source, with nothing but the standard library.

The Makefile and the tests bring clusters up through this package before the project's own environment exists,
which is why nothing here imports anything that has to be installed.
"""
