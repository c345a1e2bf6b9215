"""How a place in a bucket and its service are written, in the run file and on the trajectory server's command line."""

BUCKET_ADDRESS = r"^s3://[a-z0-9][a-z0-9.-]+[a-z0-9](/[A-Za-z0-9_=+-][A-Za-z0-9_.=+-]*)*/?$"
"""A bucket and, perhaps, a prefix in it."""

ENDPOINT = r"^https?://[^@/ ]+(/[^@ ]*)?$"
"""Address of a service, without a user or password."""
