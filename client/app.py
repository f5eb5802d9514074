"""The silo as a Flower `ClientApp`. It answers two kinds of message, from the folder named in its node's configuration.

Start a node with ``silo="<folder>"`` in its node config; a request arrives as `query.release`, a dry round of it as
`query.plan`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from dpdd.client.open_records import OpenRecords
from dpdd.client.rehearsal import rehearse
from dpdd.client.silo import Silo
from dpdd.client.worker.worker import Worker
from dpdd.common.errors import sayable
from dpdd.common.progress import Progress, silent
from dpdd.common.wire.answer import encode_answer
from dpdd.common.wire.plan import encode_report

log = logging.getLogger("dpdd.client")

SILO_FAILED = 1000
"""Flower error code of a silo that could not answer; says nothing about why."""


def make_app(progress: Callable[[str], Progress] = lambda _silo: silent, worker: Worker | None = None) -> ClientApp:
    """A ClientApp whose silos report to `progress(<silo name>)`, and have their records read by `worker`.

    Without one they read them in this process, as simulated silos may, which keep them open between stages.
    """
    app, opened = ClientApp(), OpenRecords()

    def silo_in(folder: Path) -> Silo:
        return Silo(folder, worker, opened)

    @app.query("release")
    def answer(message: Message, context: Context) -> Message:
        def work(silo: Silo, request: bytes) -> bytes:
            return encode_answer(silo.answer(request, progress(silo.settings.name)))

        return _reply(message, context, silo_in, work, "dpdd.v1.Answer")

    @app.query("plan")
    def report(message: Message, context: Context) -> Message:
        def work(silo: Silo, request: bytes) -> bytes:
            return encode_report(rehearse(silo, request))

        return _reply(message, context, silo_in, work, "dpdd.v1.PlanReport")

    return app


def _reply(
    message: Message,
    context: Context,
    silo_in: Callable[[Path], Silo],
    work: Callable[[Silo, bytes], bytes],
    stype: str,
) -> Message:
    """What `work` makes of the request in a message, for the silo that the node's configuration names."""
    try:
        silo = silo_in(Path(str(context.node_config["silo"])))
        reply = work(silo, flower.unpack(message.content, "dpdd.v1.ReleaseRequest"))
    except Exception as error:  # whatever it was: Flower would put its text into the reply
        # What went wrong may depend on the records, so the coordinator learns only that something did.
        log.error("no answer to the coordinator: %s", sayable(error))
        log.info("where it went wrong:", exc_info=True)
        return Message(Error(SILO_FAILED, "the silo could not answer; its own log says why"), reply_to=message)
    return Message(flower.pack(reply, stype), reply_to=message)


app = make_app(worker=Worker())
