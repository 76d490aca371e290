"""Certificates and keys of a federation: an authority, the server's certificate, and a key for each client.

DIR/server/ stays with the server: its private key, its certificate, and the clients' public keys.
DIR/client-N/ is handed to client N: its private key, and the authority's certificate, by which it recognizes
the server. The authority's private key signs the server's certificate and is then deleted.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kedge.core.errors import DataError, RequestError

SERVER, AUTHORITY, KEY, CERTIFICATE, SHEET = (
    "server",
    "authority.pem",
    "key.pem",
    "certificate.pem",
    "HANDOUT.md",
)
LIFETIME = datetime.timedelta(days=825)  # the longest that all TLS libraries accept
CLOCK_ERROR = datetime.timedelta(days=1)

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


class ServerFiles(NamedTuple):
    """The files of the server's certificate and key, and the clients by their public keys."""

    certificate: Path
    key: Path
    clients: dict[bytes, int]


class ClientFiles(NamedTuple):
    """A client's number and keys, and the file of the authority's certificate."""

    client: int
    keys: tuple[PrivateKey, PublicKey]
    authority: Path


def initialize(folder: Path, hosts: Sequence[str], clients: int) -> Path:
    """Make keys and certificates in a new folder, for a server reached as `hosts`; return the sheet."""
    if folder.exists():
        raise RequestError(
            f"--init {folder}: it exists already. Its keys may be in use: name another folder, or delete it."
        )
    if clients < 1:
        raise RequestError(f"--clients {clients}: need at least 1.")
    folder.mkdir(parents=True, mode=0o700)
    authority_key, server_key = new_key(), new_key()
    authority = certificate("kedge authority", None, authority_key, authority_key, ())
    server = certificate(hosts[0], authority, authority_key, server_key, hosts)
    (folder / SERVER).mkdir(mode=0o700)
    write_private(folder / SERVER / KEY, server_key)
    (folder / SERVER / CERTIFICATE).write_bytes(pem(server) + pem(authority))
    for client in range(clients):
        place, key = folder / f"client-{client}", new_key()
        place.mkdir(mode=0o700)
        write_private(place / KEY, key)
        (place / AUTHORITY).write_bytes(pem(authority))
        (folder / SERVER / f"client-{client}.pub").write_bytes(public_bytes(key.public_key()))
    sheet = folder / SHEET
    sheet.write_text(handout(hosts[0], clients), encoding="utf-8")
    return sheet


def handout(host: str, clients: int) -> str:
    """The sheet that assigns the folders to the sites."""
    rows = "\n".join(
        f"| `client-{n}/` | site {n} | `kedge join {host}:PORT --credentials client-{n} --data FILE.npz` |"
        for n in range(clients)
    )
    return f"""# Who gets what

Hand over each folder on a way that only its receiver can read, then delete your copy of it.
Nobody needs the folder of another one. A key that has leaked: make new ones with `kedge serve --init`.

| folder | receiver | command |
|---|---|---|
| `server/` | stays on the server | `kedge serve EXPERIMENT --address 0.0.0.0:PORT --credentials server` |
{rows}

The certificates are valid for {LIFETIME.days} days.
"""


def new_key() -> PrivateKey:
    """A new private key on the curve P-384, as Flower requires."""
    return ec.generate_private_key(ec.SECP384R1())


def certificate(
    name: str, issuer: x509.Certificate | None, signer: PrivateKey, key: PrivateKey, hosts: Sequence[str]
) -> x509.Certificate:
    """A certificate for `key`, signed by `signer`; without an issuer that of an authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now, own = datetime.datetime.now(datetime.UTC), issuer is None
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    usage = x509.KeyUsage(not own, False, False, False, False, own, own, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_ERROR)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=own, path_length=0 if own else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )
    if hosts:
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        names = x509.SubjectAlternativeName([host_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False).add_extension(server, critical=False)
    return builder.sign(signer, hashes.SHA384())


def host_name(host: str) -> x509.GeneralName:
    """A host as a certificate names it: an IP address or a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def pem(found: x509.Certificate) -> bytes:
    """A certificate as text."""
    return found.public_bytes(serialization.Encoding.PEM)


def public_bytes(key: PublicKey) -> bytes:
    """A public key as text, as Flower compares it."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_private(path: Path, key: PrivateKey) -> None:
    """Write a private key to a new file that only its owner can read."""
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def read_server(folder: Path) -> ServerFiles:
    """The server's files in `folder`."""
    check_files(folder, (CERTIFICATE, KEY), "server")
    keys = {path.read_bytes(): int(path.stem.partition("-")[2]) for path in folder.glob("client-*.pub")}
    return ServerFiles(folder / CERTIFICATE, folder / KEY, keys)


def read_client(folder: Path) -> ClientFiles:
    """A client's files in `folder`, which is named client-N."""
    check_files(folder, (AUTHORITY, KEY), "client-N")
    number = folder.resolve().name.partition("-")[2]
    if not number.isdigit():
        raise RequestError(
            f"--credentials {folder}: keep the folder's name, client-N with the client's number."
        )
    private = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise DataError(
            f"{folder / KEY}: not a key that kedge serve --init has made. Restore it from a copy."
        )
    return ClientFiles(int(number), (private, private.public_key()), folder / AUTHORITY)


def check_files(folder: Path, names: Sequence[str], kind: str) -> None:
    """Raise if a file is missing."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"--credentials {folder}: {missing[0]} is missing. Name the folder {kind}/ that "
            "kedge serve --init has made."
        )
