"""Passes messages on to the node's worker, and its answers back.

This code comes from the recommender, so it is given nothing but a socket: the
worker, under another account, holds the ratings and checks every message.
"""

from multiprocessing.connection import Client

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
_LONGEST = 600  # seconds that a worker may take


@app.train()
def train(message: Message, context: Context) -> Message:
  """The worker's answer."""
  data = message.content.config_records['dpmf']['data']
  assert isinstance(data, bytes)
  # Bytes only: `send` and `recv` would pickle.
  with Client(str(context.node_config['socket']), 'AF_UNIX') as link:
    link.send_bytes(data)
    if not link.poll(_LONGEST):
      raise TimeoutError('the worker takes too long')
    answer = link.recv_bytes()
  content = RecordDict({'dpmf': ConfigRecord({'data': answer})})
  return Message(content, reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
  """Which party of the plan this is."""
  number = int(context.node_config['number'])
  content = RecordDict({'dpmf': ConfigRecord({'number': number})})
  return Message(content, reply_to=message)
