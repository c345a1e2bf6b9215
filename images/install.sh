#!/bin/sh
# Installs /opt/build/requirements.txt into /opt/venv inside an image build, with the building machine's certificates and
# package index where it passed some, and leaves nothing else behind.
set -eu
[ ! -s /run/build/ca.crt ] || export SSL_CERT_FILE=/run/build/ca.crt
[ ! -s /run/build/uv.toml ] || export UV_CONFIG_FILE=/run/build/uv.toml
/opt/tools/uv pip install --python /opt/venv/bin/python --cache-dir /var/cache/uv --link-mode copy --compile-bytecode \
    --require-hashes --requirements /opt/build/requirements.txt
rm -rf /opt/build
