"""A server of one route, in the event loop of a test."""

from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serve_route(method, path, handler, **options):
    app = web.Application()
    app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, **options)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()
