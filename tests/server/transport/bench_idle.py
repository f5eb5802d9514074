"""What connected silos cost a coordinator that has nothing to ask: processor time, memory and threads.

``python -m tests.server.transport.bench_idle --silos 2000 [--beside OTHER/bin/python]``

Each silo has a certificate, a TLS connection and a node's channel options; it keeps its stream of requests open, and
sends a heartbeat every ten seconds, as a node does. The server is a process of its own; silos share a few processes.
With `--beside`, the server of another checkout is measured in the same run with the same silos, and the two take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BEAT = "/dpdd.v1.Exchange/Heartbeat"
SETTLE = 20.0
CONNECTING = 300.0


def serve(folder: Path) -> None:
    """The server's process, until stdin ends. Imports nothing but the server: another checkout's may run it."""
    from dpdd.server.transport.coordinator import Coordinator
    from dpdd.server.transport.request_queue import RequestQueue
    from dpdd.server.transport.service import Address, ExchangeServer

    coordinator, queue = Coordinator(folder / "coordinator"), RequestQueue(folder / f"run-{os.getpid()}" / "store")
    with ExchangeServer(coordinator, queue, Address()) as server:
        print(server.port, flush=True)
        sys.stdin.read()
    queue.close()


async def live(folder: Path, port: int, first: int, number: int) -> None:
    """Silos `first` to `first + number`, in this process. Says how many are connected, then how many beats came."""
    import grpc

    from dpdd.client.transport.channel import CHANNEL

    root, beats, lost = (folder / "coordinator" / "authority.pem").read_bytes(), 0, 0
    connecting = asyncio.Semaphore(8)

    async def silo(index: int, connected: asyncio.Future[None]) -> None:
        nonlocal beats, lost
        both = (folder / "silos" / f"{index}.pem").read_bytes()
        start = both.index(b"-----BEGIN CERTIFICATE")
        credentials = grpc.ssl_channel_credentials(root, both[:start], both[start:])
        while True:  # a node comes back, too
            try:
                async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, CHANNEL) as channel:
                    stream = channel.unary_stream("/dpdd.v1.Exchange/Requests")(b"")
                    async with connecting:
                        await stream.initial_metadata()
                    if not connected.done():
                        connected.set_result(None)
                    await beat(channel, stream, 10.0 * index / number % 10.0)
            except grpc.RpcError:
                lost += 1
            await asyncio.sleep(1.0)

    async def beat(channel: Any, stream: Any, pause: float) -> None:
        nonlocal beats, lost
        await asyncio.sleep(pause)
        while not stream.done():
            try:
                await channel.unary_unary(BEAT)(b"", timeout=30)
                beats += 1
            except grpc.RpcError:
                lost += 1
            await asyncio.sleep(10.0)

    ready = [asyncio.get_running_loop().create_future() for _ in range(number)]
    tasks = [asyncio.create_task(silo(first + index, ready[index])) for index in range(number)]
    await asyncio.wait([asyncio.gather(*ready), *tasks], return_when=asyncio.FIRST_COMPLETED, timeout=CONNECTING)
    print(json.dumps({"connected": sum(one.done() for one in ready)}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps({"beats": beats, "lost": lost}), flush=True)
    os._exit(0)


def make_silos(folder: Path, number: int) -> None:
    """A coordinator, and so many silos that joined it: key and certificate in a file each."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from dpdd.server.transport.authority import private_pem
    from dpdd.server.transport.coordinator import Coordinator
    from dpdd.v1 import exchange_pb2

    coordinator = Coordinator.initialise(folder / "coordinator")
    coordinator.registry._db.execute("PRAGMA synchronous = OFF")  # it is thrown away
    (folder / "silos").mkdir()
    for index in range(number):
        key = ec.generate_private_key(ec.SECP256R1())
        csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        reply = coordinator.join(
            exchange_pb2.JoinRequest(
                token=str(coordinator.enrol(f"silo-{index}")),
                certificate_request=csr.public_bytes(serialization.Encoding.DER),
                release_public_key=index.to_bytes(32, "big"),
            ),
            1,
        )
        pem = x509.load_der_x509_certificate(reply.certificate).public_bytes(serialization.Encoding.PEM)
        (folder / "silos" / f"{index}.pem").write_bytes(private_pem(key) + pem)
    coordinator.close()


def usage(process: int) -> dict[str, float]:
    """A process's processor seconds, resident megabytes and threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return {"cpu": seconds, "rss": int(status["VmRSS"].split()[0]) / 1024, "threads": int(status["Threads"])}


def measure(python: str, folder: Path, silos: int, processes: int, seconds: float) -> dict[str, float]:
    """One server, all silos connected to it, watched for so many seconds."""
    me = str(Path(__file__).resolve())
    server = subprocess.Popen(
        [python, me, "--serve", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    clients: list[subprocess.Popen[str]] = []
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        alone, started = usage(server.pid), time.monotonic()
        share = silos // processes
        for index in range(processes):
            command = [sys.executable, "-m", "tests.server.transport.bench_idle", "--live", str(folder), port]
            clients.append(
                subprocess.Popen(
                    [*command, str(index * share), str(share)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
            )
        connected = sum(_line(client)["connected"] for client in clients)
        took, joined = time.monotonic() - started, usage(server.pid)
        time.sleep(SETTLE)
        before, since = usage(server.pid), time.monotonic()
        time.sleep(seconds)
        after, watched = usage(server.pid), time.monotonic() - since
        said = []
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
            said.append(_line(client))
        return {
            "connected": connected,
            "connecting s": took,
            "connecting CPU s": joined["cpu"] - alone["cpu"],
            "idle CPU %": 100 * (after["cpu"] - before["cpu"]) / watched,
            "RSS MB": after["rss"],
            "of which before": alone["rss"],
            "threads": after["threads"],
            "beats": sum(one["beats"] for one in said),
            "calls lost": sum(one["lost"] for one in said),
        }
    finally:
        for process in (*clients, server):
            process.kill()
            process.wait()


def _line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=4, help="that the silos share")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--beside", metavar="PYTHON", help="of another checkout")
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--live", nargs=4)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if options.serve:
        return serve(options.serve)
    if options.live:
        folder, *numbers = options.live
        return asyncio.run(live(Path(folder), *map(int, numbers)))
    from dpdd.common.cli import table

    rows: list[list[str]] = []
    heads: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        make_silos(Path(scratch), options.silos)
        for _ in range(options.repeats):
            for name, python in (("beside", options.beside), ("this", sys.executable)):
                if python:
                    row = measure(python, Path(scratch), options.silos, options.processes, options.seconds)
                    heads = ["server", *row]
                    rows.append([name, *(f"{value:.1f}".removesuffix(".0") for value in row.values())])
                    print(rows[-1], file=sys.stderr, flush=True)
    print(table(heads, rows))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"({os.cpu_count()} processors for the server, the silos and whatever else runs here: load {load})")


if __name__ == "__main__":
    sys.exit(main())
