"""A server and a client of asyncio: what comes back must be what was sent."""
import asyncio


async def serve(reader, writer):
    while data := await reader.readline():
        writer.write(data)
        await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
    for turn in range(300):
        for number, (_, writer) in enumerate(pairs):
            writer.write(b"%d %d\n" % (turn, number))
        for number, (reader, _) in enumerate(pairs):
            assert await reader.readline() == b"%d %d\n" % (turn, number)
    for _, writer in pairs:
        writer.close()
    server.close()


asyncio.run(main())
