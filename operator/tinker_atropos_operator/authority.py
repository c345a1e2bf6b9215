"""The operator's own keys: the one that run tokens are derived from, and the authority behind the progress receiver.

Made once, kept in one Secret of the operator's namespace, the only Secret that the operator reads. The receiver's
certificate is made anew at each start from the authority, so nothing ever has to be renewed in a running cluster
before the authority itself, and that one is replaced in time at a start."""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
import ssl
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tinker_atropos_operator.kube import SECRETS, ApiError, Kube
from tinker_atropos_operator.settings import Settings
from tinker_atropos_operator.specs.labels import APP_NAME

LIFETIME = dt.timedelta(days=3650)
RENEW_BEFORE = dt.timedelta(days=365)
_FIELDS = ("token-key", "ca.crt", "ca.key")


@dataclass(frozen=True)
class Authority:
    """Keys as they are in the Secret."""

    token_key: bytes
    ca_certificate: str
    ca_key: str

    @classmethod
    def generate(cls, now: dt.datetime, token_key: bytes | None = None) -> Authority:
        """A new authority; the token key is kept when there is one, for running pods hold tokens of it."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tinker-atropos-operator")])
        certificate = (
            _builder(name, name, key.public_key(), now, now + LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(token_key or secrets.token_bytes(32), _pem(certificate), _key_pem(key))

    def expires_soon(self, now: dt.datetime) -> bool:
        return x509.load_pem_x509_certificate(self.ca_certificate.encode()).not_valid_after_utc - now < RENEW_BEFORE

    def server_context(self, names: Sequence[str], now: dt.datetime) -> ssl.SSLContext:
        """TLS for a server under these names and addresses."""
        issuer = x509.load_pem_x509_certificate(self.ca_certificate.encode())
        issuer_key = serialization.load_pem_private_key(self.ca_key.encode(), password=None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
        certificate = (
            _builder(subject, issuer.subject, key.public_key(), now, issuer.not_valid_after_utc)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
            .sign(issuer_key, hashes.SHA256())
        )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with tempfile.TemporaryDirectory() as folder:  # the ssl module reads keys from files only
            chain = Path(folder) / "tls.pem"
            chain.touch(mode=0o600)
            chain.write_text(_key_pem(key) + _pem(certificate))
            context.load_cert_chain(chain)
        return context


async def load(kube: Kube, settings: Settings, now: dt.datetime) -> Authority:
    """The operator's keys, made if there are none yet."""
    while True:
        try:
            body = await kube.get(SECRETS, settings.namespace, settings.secret)
        except ApiError as error:
            if not error.not_found:
                raise
            body = None
        found = None if body is None else _decoded(body.get("data") or {})
        if found is not None and not found.expires_soon(now):
            return found
        made = Authority.generate(now, found.token_key if found else None)
        wanted = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": settings.secret,
                "namespace": settings.namespace,
                "labels": {APP_NAME: "tinker-atropos-operator"},
                **({"resourceVersion": body["metadata"]["resourceVersion"]} if body else {}),
            },
            "type": "Opaque",
            "data": {
                "token-key": b64encode(made.token_key).decode(),
                "ca.crt": b64encode(made.ca_certificate.encode()).decode(),
                "ca.key": b64encode(made.ca_key.encode()).decode(),
            },
        }
        try:
            if body is None:
                await kube.create(SECRETS, settings.namespace, wanted)
            else:
                await kube.replace(SECRETS, settings.namespace, settings.secret, wanted)
        except ApiError as error:
            if not error.conflict:  # another replica made it at the same moment: take that one
                raise


def server_names(settings: Settings) -> list[str]:
    """Names under which trainers may call the progress receiver."""
    service, namespace = settings.service, settings.namespace
    names = [
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
        f"{service}.{namespace}",
        service,
    ]
    host = urlsplit(settings.progress_base_url).hostname
    if host and host not in names:
        names.append(host)
    return names


def _decoded(data: dict[str, str]) -> Authority | None:
    if not all(data.get(field) for field in _FIELDS):
        return None
    token_key, certificate, key = (b64decode(data[field]) for field in _FIELDS)
    return Authority(token_key, certificate.decode(), key.decode())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    until: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # clocks of nodes differ
        .not_valid_after(until)
    )


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
