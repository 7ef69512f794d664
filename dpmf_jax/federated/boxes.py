"""Boxes that two parties can open and nobody who carries them.

X25519 agrees on a secret, HKDF-SHA256 makes of it one key for each (run, round,
sender), and ChaCha20-Poly1305 seals: what is opened was made by the one who
has the other private key, for this run and round. Public keys are in the plan.
"""

from __future__ import annotations

import os
import secrets
import struct
from pathlib import Path
from typing import Any

_NONCE = 12
_KEY = 32


class BrokenBoxError(ValueError):
  """A box that was not made for this place, or changed on the way."""


def own_key(path: str | Path) -> bytes:
  """The private key in a file, which is made at its first use."""
  path = Path(path)
  try:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
  except FileExistsError:
    content = path.read_bytes()
    if len(content) != _KEY:
      raise ValueError(f'{path} has {len(content)} bytes, not {_KEY}') from None
    return content
  with os.fdopen(handle, 'wb') as file:
    content = secrets.token_bytes(_KEY)
    file.write(content)
  return content


def public_key(private: bytes) -> str:
  """What others need of it, in hexadecimal."""
  x25519, serialization = _primitives()[:2]
  public = x25519.X25519PrivateKey.from_private_bytes(private).public_key()
  raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
  return public.public_bytes(*raw).hex()


def sealed(
  data: bytes, private: bytes, public: str, *, run: str, round: int, sender: int
) -> bytes:
  """A box with `data`, from the owner of `private` to that of `public`."""
  nonce = secrets.token_bytes(_NONCE)
  label = _label(run, round, sender)
  return nonce + _cipher(private, public, label).encrypt(nonce, data, label)


def unsealed(
  box: bytes, private: bytes, public: str, *, run: str, round: int, sender: int
) -> bytes:
  """What is in a box; BrokenBoxError where it is not for this place."""
  from cryptography.exceptions import InvalidTag

  label = _label(run, round, sender)
  try:
    return _cipher(private, public, label).decrypt(
      box[:_NONCE], box[_NONCE:], label
    )
  except (InvalidTag, ValueError):
    raise BrokenBoxError('the box is of another run, round or sender') from None


def _label(run: str, round: int, sender: int) -> bytes:
  return bytes.fromhex(run) + struct.pack('<II', round, sender)


def _cipher(private: bytes, public: str, label: bytes) -> Any:
  x25519, _, hashes, hkdf, aead = _primitives()
  secret = x25519.X25519PrivateKey.from_private_bytes(private).exchange(
    x25519.X25519PublicKey.from_public_bytes(bytes.fromhex(public))
  )
  derived = hkdf.HKDF(hashes.SHA256(), _KEY, salt=None, info=b'dpmf' + label)
  return aead.ChaCha20Poly1305(derived.derive(secret))


def _primitives() -> tuple[Any, ...]:
  try:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import x25519
    from cryptography.hazmat.primitives.ciphers import aead
    from cryptography.hazmat.primitives.kdf import hkdf
  except ImportError:
    raise ImportError(
      'sealed messages need the package cryptography: pip install '
      '-r requirements-federated.txt'
    ) from None
  return x25519, serialization, hashes, hkdf, aead
