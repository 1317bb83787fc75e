"""An authority of a test's own, and certificates that it signs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
HERE = "DNS:localhost,IP:127.0.0.1"
"""Names of this machine."""


@dataclass(frozen=True)
class Certificate:
    """A certificate, and the key to it."""

    chain: Path
    key: Path

    @property
    def shown(self) -> dict[str, Any]:
        """As settings have it."""
        return {"tls_cert": self.chain, "tls_key": self.key}

    def replace_by(self, other: Certificate) -> None:
        """Put another one into the place of this one, the key first."""
        self.key.write_bytes(other.key.read_bytes())
        self.chain.write_bytes(other.chain.read_bytes())


class Authority:
    """Signs certificates. Skips the test where openssl is not installed."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self.own = self._files(name)
        _openssl(f"req -x509 {_KEY} -days 2 -subj /CN={name} -keyout {self.own.key} -out {self.own.chain}")

    @property
    def pem(self) -> Path:
        """Its own certificate."""
        return self.own.chain

    def certify(self, name: str, also: str = HERE, days: int = 2) -> Certificate:
        """A certificate with `name` as its common name, and alternative names, valid for so many days, or, below 0, no longer."""
        made, asked, names = self._files(name), self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        names.write_text(f"subjectAltName={also}\n")
        _openssl(f"req {_KEY} -subj /CN={name} -keyout {made.key} -out {asked}")
        signed = f"x509 -req -in {asked} -CA {self.own.chain} -CAkey {self.own.key} -CAcreateserial -days {days}"
        _openssl(f"{signed} -extfile {names} -out {made.chain}")
        return made

    def _files(self, name: str) -> Certificate:
        return Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")


def _openssl(arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
