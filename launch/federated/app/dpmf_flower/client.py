"""Passes messages on to the node's worker, and its answers back.

This code comes from the recommender, so it is given nothing but a socket: the
worker, under another account, holds the ratings and checks every message.
"""

import socket
import struct

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
_SIZE = struct.Struct('<Q')


def _exactly(link: socket.socket, size: int) -> bytes:
  parts = []
  while size:
    part = link.recv(min(size, 2**20))
    if not part:
      raise EOFError('the worker went away')
    parts.append(part)
    size -= len(part)
  return b''.join(parts)


@app.train()
def train(message: Message, context: Context) -> Message:
  """The worker's answer."""
  data = message.content.config_records['dpmf']['data']
  assert isinstance(data, bytes)
  with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
    link.settimeout(600)
    link.connect(str(context.node_config['socket']))
    link.sendall(_SIZE.pack(len(data)) + data)
    (size,) = _SIZE.unpack(_exactly(link, _SIZE.size))
    answer = _exactly(link, size)
  content = RecordDict({'dpmf': ConfigRecord({'data': answer})})
  return Message(content, reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
  """Which party of the plan this is."""
  number = int(context.node_config['number'])
  content = RecordDict({'dpmf': ConfigRecord({'number': number})})
  return Message(content, reply_to=message)
