"""The silo as a Flower `ClientApp`. It answers one kind of message, from the folder named in its node's configuration.

Start a node with ``silo="<folder>"`` in its node config; a request arrives as `query.release`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from dpdd.client.silo import Silo
from dpdd.common.errors import DpddError
from dpdd.common.progress import Progress, silent
from dpdd.common.wire.answer import encode_answer

log = logging.getLogger("dpdd.client")

SILO_FAILED = 1000
"""Flower error code of a silo that could not answer; says nothing about why."""


def make_app(progress: Callable[[str], Progress] = lambda _silo: silent) -> ClientApp:
    """A ClientApp whose silos report to `progress(<silo name>)`."""
    app = ClientApp()

    @app.query("release")
    def answer(message: Message, context: Context) -> Message:
        try:
            silo = Silo(Path(str(context.node_config["silo"])))
            request = flower.unpack(message.content, "dpdd.v1.ReleaseRequest")
            reply = encode_answer(silo.answer(request, progress(silo.settings.name)))
        except (DpddError, OSError, KeyError) as error:
            # What went wrong may depend on the records, so the coordinator learns only that something did.
            log.error("no answer to the coordinator: %s", error)
            log.info("where it went wrong:", exc_info=True)
            return Message(Error(SILO_FAILED, "the silo could not answer; its own log says why"), reply_to=message)
        return Message(flower.pack(reply, "dpdd.v1.Answer"), reply_to=message)

    return app


app = make_app()
