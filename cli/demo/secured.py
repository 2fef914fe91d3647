"""What a demo with ``--tls`` proves itself by: authorities, certificates, tokens, a security file.

``openssl`` makes the certificates, as in docs/security.md, because the base installation of
slotwheel has nothing that does. One authority proves nodes to clients, another one peers to each
other; clients prove themselves by a token. The authorities' keys are deleted at once: nobody needs
another certificate of theirs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from ...security.tokens import digest_of, new_token
from ...wheel.errors import InvalidConfiguration, MissingExtra

FOLDER = "secured"
HOST = "127.0.0.1"
_DAYS = "7"
_NODES, _PEERS = "nodes", "peers"
_CLIENT, _GATEWAY = _TOKENS = ("demo", "gateway")
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_ROLES = """
[roles.demo]
schedule = ["demo-*"]
cancel = ["demo-*"]
read = ["demo-*"]
observe = true

[roles.gateway]
gateway = true

[members]
"token:demo" = ["demo"]
"token:gateway" = ["gateway"]
"""


@dataclass(frozen=True, slots=True)
class Secured:
    """The files of a demo with TLS, in ``folder``."""

    folder: Path

    @classmethod
    def made(cls, directory: Path, names: Iterable[str]) -> Secured:
        """Make the files in a folder of ``directory``, with a certificate for each of the peers
        ``names``. Errors: ``MissingExtra``, ``InvalidConfiguration``: there is no ``openssl``, or
        it failed."""
        secured = cls(directory / FOLDER)
        secured.folder.mkdir(mode=0o700)
        secured._certify(_NODES, "node", f"IP:{HOST}")
        peers = list(names)
        for name in peers:
            secured._certify(_PEERS, name, f"DNS:{name}")
        for file in secured.folder.iterdir():
            if (file.stem in (_NODES, _PEERS) and file.suffix != ".crt") or file.suffix == ".csr":
                file.unlink()
        text = ""
        for name in _TOKENS:
            token = new_token()
            secured._write(f"{name}.token", token)
            text += f'[tokens.{name}]\nsha256 = "{digest_of(token)}"\n'
        secured._write("security.toml", text + _ROLES)
        return secured

    @property
    def ca(self) -> Path:
        """The authority that proves nodes to clients."""
        return self.folder / f"{_NODES}.crt"

    @property
    def token(self) -> Path:
        """The file of the client's token."""
        return self.folder / f"{_CLIENT}.token"

    def node_options(self) -> tuple[str, ...]:
        files = {"tls-cert": "node.crt", "tls-key": "node.key", "security": "security.toml"}
        return self._options(files)

    def peer_options(self, name: str) -> tuple[str, ...]:
        """The options of the peer ``name`` besides those of a node."""
        return self._options(
            {"peer-cert": f"{name}.crt", "peer-key": f"{name}.key", "peer-ca": f"{_PEERS}.crt"}
        )

    def gateway_options(self) -> tuple[str, ...]:
        """The options of a node whose gateway has to prove itself to it."""
        return self._options({"tls-ca": f"{_NODES}.crt", "token-file": f"{_GATEWAY}.token"})

    def client_options(self) -> tuple[str, ...]:
        """The options of a command, besides ``--node tls://…``."""
        return self._options({"tls-ca": f"{_NODES}.crt", "token-file": f"{_CLIENT}.token"})

    def _options(self, files: dict[str, str]) -> tuple[str, ...]:
        return tuple(
            word for name, file in files.items() for word in (f"--{name}", str(self.folder / file))
        )

    def _certify(self, authority: str, name: str, proven: str) -> None:
        """Make a certificate of an authority, which is made with its first one. ``proven``: the
        host or name for which it stands."""
        root = self.folder / authority
        if not root.with_suffix(".crt").exists():
            self._openssl("req", "-x509", *_KEY, "-days", _DAYS, "-subj", f"/CN=demo {authority}",
                          "-keyout", f"{root}.key", "-out", f"{root}.crt")  # fmt: skip
        own = self.folder / name
        self._write(f"{authority}.names", f"subjectAltName={proven}")
        self._openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{own}.key",
                      "-out", f"{own}.csr")  # fmt: skip
        self._openssl("x509", "-req", "-in", f"{own}.csr", "-days", _DAYS, "-CA", f"{root}.crt",
                      "-CAkey", f"{root}.key", "-CAcreateserial", "-extfile", f"{root}.names",
                      "-out", f"{own}.crt")  # fmt: skip

    def _openssl(self, *arguments: str) -> None:
        program = which("openssl")
        if program is None:
            raise MissingExtra(
                "the demo makes its certificates with openssl, which is not installed",
                remedy="Install the package openssl, or leave out --tls",
            )
        command = [program, *arguments]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        except subprocess.CalledProcessError as error:
            raise InvalidConfiguration(
                "openssl cannot make the demo's certificates",
                got=error.stderr.decode(errors="replace").strip()[-300:],
                remedy="Mend it, or leave out --tls",
            ) from None

    def _write(self, name: str, text: str) -> None:
        """Write a file that only its owner can read."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(self.folder / name, flags, 0o600), "w") as file:
            file.write(text)
