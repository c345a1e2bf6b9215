"""Small proxy on loopback beside each environment process: identity, tokenizer, patience.

Light on purpose: it runs once for every replica, so nothing here imports tinker, transformers, grpc or jax.
"""
