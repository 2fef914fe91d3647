"""Certificates and authorities for tests, as files in PEM."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

from slotwheel.security.tls import Tls


class Authority:
    """An authority with its certificate in the file ``ca``; issues certificates beside it."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._made = trustme.CA(organization_name=name)
        self.ca = folder / f"{name}.pem"
        self._made.cert_pem.write_to_path(str(self.ca))

    @property
    def own_pem(self) -> bytes:
        """The authority's own certificate, which it has signed itself, and its key."""
        return self._made.cert_pem.bytes() + self._made.private_key_pem.bytes()

    def locked_key(self, folder: Path, password: str = "secret") -> Path:
        """A file with the authority's own key, which has a password."""
        key = serialization.load_pem_private_key(self._made.private_key_pem.bytes(), None)
        path = folder / "locked.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(password.encode()),
            )
        )
        return path

    def issue(
        self,
        *names: str,
        common_name: str | None = None,
        expired: bool = False,
        file: str | None = None,
    ) -> Tls:
        """The files of a certificate for ``names``, hosts or addresses, and of this authority.
        ``file``: the name of the certificate's file, by default that of the first name."""
        after = datetime.datetime(2000, 1, 2, tzinfo=datetime.UTC) if expired else None
        before = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC) if expired else None
        made = self._made.issue_cert(
            *names, common_name=common_name, not_before=before, not_after=after
        )
        cert = self.folder / f"{file or (names or ('unnamed',))[0]}.crt"
        key = cert.with_suffix(".key")
        key.write_bytes(made.private_key_pem.bytes())
        cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return Tls(ca=self.ca, cert=cert, key=key)

    def issue_raw(self, names: Sequence[tuple[int, bytes]], common_name: str) -> Tls:
        """The files of a certificate whose alternative names are tags and bytes, as no program for
        certificates would write them."""
        body = b"".join(bytes([tag]) + _length(content) + content for tag, content in names)
        authority = x509.load_pem_x509_certificate(self._made.cert_pem.bytes())
        signs = serialization.load_pem_private_key(self._made.private_key_pem.bytes(), None)
        assert isinstance(signs, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder(
            issuer_name=authority.subject,
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(days=1),
            not_valid_after=now + datetime.timedelta(days=1),
        ).add_extension(
            x509.UnrecognizedExtension(
                ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\x30" + _length(body) + body
            ),
            critical=False,
        )
        pem = serialization.Encoding.PEM
        cert = self.folder / "raw.crt"
        cert.write_bytes(
            made.sign(signs, hashes.SHA256()).public_bytes(pem)
            + key.private_bytes(
                pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Tls(ca=self.ca, cert=cert)


def _length(content: bytes) -> bytes:
    """The length of a content in DER."""
    if len(content) < 128:
        return bytes([len(content)])
    return b"\x82" + len(content).to_bytes(2)


def bundle(path: Path, *authorities: Authority) -> Path:
    """A file with the certificates of several authorities, as it is while one replaces another."""
    new = path.with_suffix(".new")
    new.write_bytes(b"".join(authority.ca.read_bytes() for authority in authorities))
    new.replace(path)
    return path
