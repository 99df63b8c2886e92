"""`python -m services.gateway`."""

import asyncio
import ipaddress
import socket
import sys

from reefkit.imports import kept

with kept():
    import structlog
    import uvicorn

    from reefcommon.errors import BadConfig
    from reefcommon.settings import SystemSettings
    from reefkit import kafka_sequences, kafka_uvloop, telemetry
    from reefkit.ops import set_up_process
    from services.gateway.app import SERVICE, Gateway, build
    from services.gateway.edge import allocation
    from services.gateway.edge.httptools import bounded
    from services.gateway.exchange.tracing import Spans
    from services.gateway.settings import Settings

log = structlog.get_logger()


class Server(uvicorn.Server):
    """Uvicorn that ends the live tails when it stops: they would last until the deadline."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let exchanges finish within the deadline, then end the lifespan."""
        self._gateway.fanout.close()
        log.info(
            "gateway_stopping",
            connections=len(self.server_state.connections),
            requests=len(self.server_state.tasks),
        )
        stopping = self._gateway.edge.stopping
        timer = asyncio.get_running_loop().call_at(
            stopping.begin(), lambda: stopping.cut_off(list(self.server_state.tasks))
        )
        await super().shutdown(sockets)
        timer.cancel()


def address(settings: Settings) -> str:
    """Return the host to listen on: loopback if no token is configured."""
    if settings.tokens_file is not None or is_loopback(settings.host):
        return settings.host
    log.warning(
        "listening_on_loopback_only",
        wanted=settings.host,
        reason="no gateway.tokens_file is set, so everybody would have access",
    )
    return "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main() -> int:
    """Run until SIGTERM."""
    try:
        system = SystemSettings.load()
        settings = Settings.read(system)
        provider = telemetry.set_up(SERVICE, otlp_endpoint=system.otlp_endpoint)
        gateway = build(system, settings, Spans(provider) if system.otlp_endpoint else None)
    except BadConfig as error:
        sys.stderr.write(f"gateway cannot start: {error}\n")
        return 2
    config = uvicorn.Config(
        gateway.app,
        host=address(settings),
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=settings.keep_alive_s,
        # the gateway's own deadline comes first, and tells the clients
        timeout_graceful_shutdown=settings.drain_s + 1,
        # the sender's address is not used, and each message would pass one more function
        proxy_headers=False,
        loop="uvloop",
        http=bounded(2 * settings.max_header_bytes, settings.head_timeout_s),
        ws="none",
        lifespan="on",
    )
    set_up_process()
    kafka_uvloop.mend()
    kafka_sequences.mend()
    allocation.set_up()
    Server(config, gateway).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
