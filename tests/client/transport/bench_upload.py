"""An upload over loopback TLS beside a plain gRPC stream of the same bytes.

``python -m tests.client.transport.bench_upload``

The plain stream has the same certificates, channel options and chunk size, and its server only counts bytes. The
exchange's upload also checks every chunk's place and size, hashes, writes and syncs a file, and checks the release's
SHA-256 and signature before it acknowledges. Which of the two goes first alternates. Server and sender are processes of
their own; memory is the peak of the resident set while sending, above what the process had just before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def memory(what: str) -> float:
    """A line of /proc/self/status, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(what)


def start_counting() -> float:
    """Forget the earlier peak; the memory now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def serve(folder: Path) -> None:
    """The server's process: the exchange, and a plain service that counts. Commands come on stdin, answers go out."""
    import grpc

    from dpdd.common.methods.request_plan import plan_of
    from dpdd.server.transport.coordinator import Coordinator
    from dpdd.server.transport.request_queue import RequestQueue
    from dpdd.server.transport.service import _CHANNEL, MOST_MESSAGE, Address, ExchangeServer
    from tests.client.silos import make_request

    coordinator, queue = Coordinator(folder / "coordinator"), RequestQueue(folder / "run" / "store")
    plan_of(make_request())  # so that what planning imports is there before memory is measured

    def count(parts: Iterator[bytes], _context: Any) -> bytes:
        return str(sum(map(len, parts))).encode()

    handlers = grpc.method_handlers_generic_handler("Plain", {"Send": grpc.stream_unary_rpc_method_handler(count)})
    options = [*_CHANNEL, ("grpc.max_receive_message_length", MOST_MESSAGE)]
    plain = grpc.server(ThreadPoolExecutor(8), handlers=(handlers,), options=options)
    mutual = grpc.ssl_server_credentials([coordinator.server_key_and_certificate], coordinator.authority.pem, True)
    port = plain.add_secure_port("127.0.0.1:0", mutual)
    plain.start()
    with ExchangeServer(coordinator, queue, Address()) as server:
        print(json.dumps({"exchange": server.port, "join": server.join_port, "plain": port}), flush=True)
        before = cpu = 0.0
        for line in sys.stdin:
            match line.split():
                case ["start"]:
                    before, cpu = start_counting(), time.process_time()
                    print("{}", flush=True)
                case ["peak"]:
                    print(
                        json.dumps({"before": before, "peak": memory("VmHWM"), "cpu": time.process_time() - cpu}),
                        flush=True,
                    )
                case ["ask", path, *silos]:
                    data = Path(path).read_bytes()
                    import hashlib

                    request_id = hashlib.sha256(data).hexdigest()
                    queue.ask(request_id, data, [])
                    queue.expected(request_id, wait=True)  # before anybody can answer
                    queue.ask(request_id, data, silos)
                    print("{}", flush=True)
    plain.stop(0)


def send(folder: Path, kind: str, port: int, path: Path, request_id: str) -> None:
    """The sender's process: one payload, and how long it took."""
    from dpdd.client.silo import Silo
    from dpdd.client.transport.channel import open_channel
    from dpdd.client.transport.upload import manifest_of, upload
    from dpdd.common.wire.exchange import CHUNK

    silo = Silo(folder)
    assert silo.settings.coordinator is not None
    with open_channel(folder, silo.settings.coordinator, f"127.0.0.1:{port}") as channel:
        import grpc

        grpc.channel_ready_future(channel).result(timeout=20)
        manifest = manifest_of(path, request_id)  # a silo has the SHA-256 in its ledger
        before = start_counting()
        started, cpu = time.perf_counter(), time.process_time()
        if kind == "plain":

            def chunks() -> Iterator[bytes]:
                with path.open("rb", buffering=0) as file:
                    while data := file.read(CHUNK):
                        yield data

            assert int(channel.stream_unary("/Plain/Send")(chunks())) == path.stat().st_size
        else:
            upload(channel, path, manifest, lambda _: None)
        seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "cpu": time.process_time() - cpu, "before": before, "peak": memory("VmHWM")}))


class Server:
    """The server's process, seen from the main one."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.client.transport.bench_upload", "--serve", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.ports = self._line()

    def tell(self, command: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


def measure(megabytes: int, repeats: int, folder: Path) -> list[dict[str, float]]:
    """Plain and exchange, each first in turn, `repeats` times; seconds and peaks of both."""
    from dpdd.client.silo import Silo
    from dpdd.client.transport.join import join
    from dpdd.server.transport.coordinator import Coordinator
    from tests.client.silos import make_silo
    from tests.server.transport.worlds import big_release, big_request

    coordinator = Coordinator.initialise(folder / "coordinator")
    server = Server(folder)
    rows = []
    try:
        silo = make_silo(folder / "north")
        join(silo, f"127.0.0.1:{server.ports['join']}", coordinator.enrol("north"))
        silo = Silo(silo.folder)
        for repeat in range(repeats):
            request = big_request(megabytes * 1_000_000, f"bench-{repeat}")
            (folder / "request").write_bytes(request.encode())
            server.tell(f"ask {folder / 'request'} north")
            payload = folder / "payload"
            payload.write_bytes(big_release(silo, request))
            row: dict[str, float] = {"megabytes": megabytes}
            for kind in ("plain", "exchange") if repeat % 2 == 0 else ("exchange", "plain"):
                server.tell("start")
                port = server.ports[kind]
                command = [
                    sys.executable,
                    "-m",
                    "tests.client.transport.bench_upload",
                    "--send",
                    kind,
                    str(silo.folder),
                ]
                sent = subprocess.run(
                    [*command, str(port), str(payload), request.id], cwd=ROOT, capture_output=True, text=True
                )
                assert sent.returncode == 0, sent.stderr
                client, there = json.loads(sent.stdout), server.tell("peak")
                row[f"{kind} MB/s"] = megabytes / client["seconds"]
                row[f"{kind} CPU s"] = client["cpu"] + there["cpu"]
                row[f"{kind} sender MB"] = client["peak"] - client["before"]
                row[f"{kind} server MB"] = there["peak"] - there["before"]
            rows.append(row)
    finally:
        server.close()
        coordinator.close()
    return rows


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 300])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--send", nargs=5)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    if options.send:
        kind, folder, port, path, request_id = options.send
        return send(Path(folder), kind, int(port), Path(path), request_id)
    from dpdd.common.cli import table

    rows = []
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(megabytes, options.repeats, Path(folder))
    names = [
        "plain MB/s",
        "exchange MB/s",
        "plain CPU s",
        "exchange CPU s",
        "plain sender MB",
        "exchange sender MB",
        "plain server MB",
        "exchange server MB",
    ]
    cells = [
        [
            f"{row['megabytes']:.0f}",
            *(f"{row[name]:.2f}" if "CPU" in name else f"{row[name]:.1f}" for name in names),
            f"{row['exchange MB/s'] / row['plain MB/s']:.2f}",
        ]
        for row in rows
    ]
    print(table(["payload MB", *names, "ratio"], cells))
    for megabytes in options.megabytes:
        these = [row for row in rows if row["megabytes"] == megabytes]
        paired = median(row["exchange MB/s"] / row["plain MB/s"] for row in these)
        plain, ours = (median(row[f"{kind} MB/s"] for row in these) for kind in ("plain", "exchange"))
        work = median(row["plain CPU s"] / row["exchange CPU s"] for row in these)
        print(
            f"{megabytes} MB: median ratio {paired:.2f}; ratio of the medians {ours / plain:.2f} "
            f"({ours:.0f} and {plain:.0f} MB/s); of processor time, plain to exchange, {work:.2f}"
        )
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"({os.cpu_count()} processors for sender, server and whatever else runs here: load {load}.")
    print("Memory is the growth of the resident set while sending; CPU is of both processes together.)")


if __name__ == "__main__":
    sys.exit(main())
