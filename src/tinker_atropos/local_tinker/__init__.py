"""The local Tinker server: speaks the Tinker API on CPU and really trains small models.

For the quick start, for tests and for people without a key. See docs/architecture.md.
"""
