"""``python -m dpdd.client.worker FD``: the supervisor, on a socket that `dpdd.client.worker.worker` handed to it."""

from __future__ import annotations

from dpdd.client.worker.supervisor import main

if __name__ == "__main__":
    main()
