"""Hand an image build what the machine knows about the way to packages: certificates and index, never written down.

They go in as build secrets, so no layer, history or file of the repository ever names them.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path

_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE")
_SYSTEM_CA = Path("/etc/ssl/certs/ca-certificates.crt")


def certificates(environment: dict[str, str]) -> Path | None:
    """The authorities that this machine trusts, which may be more than the image's own."""
    for variable in _CA_VARIABLES:
        path = Path(environment.get(variable) or "/nonexistent")
        if path.is_file():
            return path
    return _SYSTEM_CA if _SYSTEM_CA.is_file() else None


def package_index(environment: dict[str, str], pip_files: list[Path]) -> dict[str, str]:
    """index-url and extra-index-url as pip would find them; empty where the machine uses the public index."""
    found: dict[str, str] = {}
    for file in pip_files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except configparser.Error:
            continue
        for section in ("global", "install"):
            for key in ("index-url", "extra-index-url"):
                if parser.has_option(section, key):
                    found[key] = " ".join(parser.get(section, key).split())
    for key, variables in {
        "index-url": ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"),
        "extra-index-url": ("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL"),
    }.items():
        for variable in variables:
            if environment.get(variable):
                found[key] = environment[variable]
    return found


def pip_files(environment: dict[str, str]) -> list[Path]:
    home = Path(environment.get("HOME") or "/")
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    if environment.get("PIP_CONFIG_FILE"):
        files.append(Path(environment["PIP_CONFIG_FILE"]))
    return [file for file in files if file.is_file()]


def pip_configuration(index: dict[str, str]) -> str:
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in index.items())


def uv_configuration(index: dict[str, str]) -> str:
    lines = []
    if "index-url" in index:
        lines.append(f'index-url = "{index["index-url"]}"')
    if "extra-index-url" in index:
        urls = ", ".join(f'"{url}"' for url in index["extra-index-url"].split())
        lines.append(f"extra-index-url = [{urls}]")
    return "".join(f"{line}\n" for line in lines)


def secrets(folder: Path) -> list[str]:
    """The --secret arguments for one build; the files live in `folder`, which the caller removes."""
    environment = dict(os.environ)
    index = package_index(environment, pip_files(environment))
    (folder / "pip.conf").write_text(pip_configuration(index))
    (folder / "uv.toml").write_text(uv_configuration(index))
    (folder / "ca.crt").write_bytes(trusted.read_bytes() if (trusted := certificates(environment)) else b"")
    files = {"ca": "ca.crt", "pip": "pip.conf", "uv": "uv.toml"}
    return [argument for name, file in files.items() for argument in ("--secret", f"id={name},src={folder / file}")]
