"""Envelopes that two parties can open and nobody who carries them.

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

import numpy as np

from dpmf_jax.federated import checks, messages
from dpmf_jax.federated.checks import RejectedError
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import Plan

KEY_FILE = 'private.key'
_NONCE = 12
_KEY = 32


def own_key(folder: str | Path) -> bytes:
  """The private key in a party's folder, which is made at its first use."""
  path = Path(folder) / KEY_FILE
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
  owner = _primitives()[0].X25519PrivateKey.from_private_bytes(private)
  return owner.public_key().public_bytes_raw().hex()


def planned_key(folder: str | Path, public: str) -> bytes:
  """The private key in a party's folder; ValueError if not the plan's."""
  private = own_key(folder)
  if public_key(private) != public:
    path = Path(folder) / KEY_FILE
    raise ValueError(f'{path} is not the key that the plan has for this party')
  return private


def sealed(data: bytes, private: bytes, public: str, label: bytes) -> bytes:
  """An envelope with `data`, from the owner of `private` to that of `public`.

  `label` says what for: see `label_of`.
  """
  nonce = secrets.token_bytes(_NONCE)
  return nonce + _cipher(private, public, label).encrypt(nonce, data, label)


def unsealed(data: bytes, private: bytes, public: str, label: bytes) -> bytes:
  """What is in an envelope; RejectedError where it is not for this label."""
  from cryptography.exceptions import InvalidTag

  nonce, content = data[:_NONCE], data[_NONCE:]
  try:
    return _cipher(private, public, label).decrypt(nonce, content, label)
  except (InvalidTag, ValueError):
    raise RejectedError('of another run, round or sender') from None


def label_of(plan: Plan, round: int, sender: int) -> bytes:
  """What an envelope of a node is for."""
  return bytes.fromhex(plan.run) + struct.pack('<II', round, sender)


def sealed_report(
  plan: Plan, number: int, private: bytes, round: int, arrays: checks.Arrays
) -> bytes:
  """A node's message with arrays that only the third party can read."""
  content = messages.to_bytes(Message(Kind.REPORT, round, number, arrays))
  label = label_of(plan, round, number)
  envelope = sealed(content, private, plan.aggregator_key, label)
  envelope = np.frombuffer(envelope, np.uint8)
  return checks.run_message(plan, Kind.SEALED, round, number, envelope)


def opened_report(
  plan: Plan, round: int, sender: int, envelope: bytes, private: bytes
) -> checks.Arrays:
  """What a node sealed for the third party, or RejectedError."""
  label = label_of(plan, round, sender)
  data = unsealed(envelope, private, plan.nodes[sender].key, label)
  message = checks.parsed(data)
  if message[:3] != (Kind.REPORT, round, sender):
    raise RejectedError('not the report of this round')
  return message.arrays


def _cipher(private: bytes, public: str, label: bytes) -> Any:
  x25519, hashes, hkdf, aead = _primitives()
  secret = x25519.X25519PrivateKey.from_private_bytes(private).exchange(
    x25519.X25519PublicKey.from_public_bytes(bytes.fromhex(public))
  )
  derived = hkdf.HKDF(hashes.SHA256(), _KEY, salt=None, info=b'dpmf' + label)
  return aead.ChaCha20Poly1305(derived.derive(secret))


def _primitives() -> tuple[Any, ...]:
  try:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import x25519
    from cryptography.hazmat.primitives.ciphers import aead
    from cryptography.hazmat.primitives.kdf import hkdf
  except ImportError:
    raise ImportError(
      'sealed messages need the package cryptography: pip install '
      '-r requirements-federated.txt'
    ) from None
  return x25519, hashes, hkdf, aead
