"""Signatures of certificates, and with them of the models that they name."""

from __future__ import annotations

import base64
import binascii
import contextlib
from pathlib import Path
from typing import Any

from dpmf_jax import files

# Ed25519 over the bytes of certificate.json, in base64.
SIGNATURE = 'certificate.sig'


def sign(folder: str | Path, private_key: str | Path) -> Path:
  """The file with the signature of the certificate in `folder`.

  Args:
    folder: of a finished run.
    private_key: an Ed25519 key in PEM, as `openssl genpkey -algorithm ed25519`
      makes it.
  """
  serialization, ed25519, unknown = _cryptography()
  path, folder = Path(private_key), Path(folder)
  key: Any = None
  # TypeError: it needs a password.
  with contextlib.suppress(ValueError, TypeError, *unknown):
    key = serialization.load_pem_private_key(path.read_bytes(), None)
  if not isinstance(key, ed25519.Ed25519PrivateKey):
    raise ValueError(
      f'{path} is not an Ed25519 private key in PEM without a password; '
      f'openssl genpkey -algorithm ed25519 -out {path} makes one'
    )
  signature = key.sign((folder / 'certificate.json').read_bytes())
  text = base64.b64encode(signature) + b'\n'
  files.write_bytes(folder / SIGNATURE, text)
  return folder / SIGNATURE


def verify(folder: str | Path, public_key: str | Path) -> None:
  """Returns nothing; ValueError where the signature is not of that key.

  Args:
    folder: with certificate.json and its signature.
    public_key: in PEM, as `openssl pkey -in KEY -pubout` writes it.
  """
  serialization, ed25519, unknown = _cryptography()
  from cryptography.exceptions import InvalidSignature

  path, folder = Path(public_key), Path(folder)
  key: Any = None
  with contextlib.suppress(ValueError, *unknown):
    key = serialization.load_pem_public_key(path.read_bytes())
  if not isinstance(key, ed25519.Ed25519PublicKey):
    raise ValueError(f'{path} is not an Ed25519 public key in PEM')
  signed = folder / SIGNATURE
  if not signed.is_file():
    raise ValueError(f'{signed} is missing: the certificate is not signed')
  content = (folder / 'certificate.json').read_bytes()
  try:
    key.verify(base64.b64decode(signed.read_bytes()), content)
  except (InvalidSignature, binascii.Error):
    raise ValueError(
      f'{signed} is not a signature of certificate.json by the key in {path}'
    ) from None


def _cryptography() -> tuple[Any, Any, Any]:
  try:
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519
  except ImportError:
    raise ValueError(
      "signatures need the package cryptography: pip install 'dpmf-jax[secure]'"
    ) from None
  return serialization, ed25519, (UnsupportedAlgorithm, InternalError)
