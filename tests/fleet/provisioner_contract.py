"""What every provisioner does, whatever its instances are; each kind's tests derive from this class."""

import asyncio
import time
from contextlib import asynccontextmanager

PATIENCE_S = 60


async def until(pool, holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds(members := await pool.members()):
        assert time.monotonic() < deadline, members
        await asyncio.sleep(0.02)
    return members


async def serving(pool, count):
    return await until(pool, lambda members: [one.state for one in members] == ["serving"] * count)


async def emptied(pool):
    for one in await pool.members():
        await pool.stop(one.name)
    assert await until(pool, lambda members: not members) == []


class ProvisionerContract:
    """A subclass has `opened()`, which returns another provisioner of the same pool each time."""

    MOST = 3
    """How many instances the pool may have."""

    def opened(self):
        raise NotImplementedError

    @asynccontextmanager
    async def pool(self):
        pool = self.opened()
        try:
            await emptied(pool)
            yield pool
        finally:
            await emptied(pool)
            await pool.close()

    async def test_started_instances_are_counted_at_once_and_serve_at_their_own_addresses(self):
        async with self.pool() as pool:
            await pool.start(1)
            assert len(await pool.members()) == 1
            await pool.start(2)
            assert len(await pool.members()) == 3
            members = await serving(pool, 3)
            assert len({one.name for one in members}) == len({one.url for one in members}) == 3
            assert all(one.url.startswith("http://") for one in members)

    async def test_more_than_there_may_be_are_not_started(self):
        async with self.pool() as pool:
            await pool.start(self.MOST + 2)
            assert len(await pool.members()) == self.MOST

    async def test_another_controller_finds_instances_of_an_ended_one(self):
        async with self.pool() as pool:
            await pool.start(2)
            names = {one.name for one in await serving(pool, 2)}
            other = self.opened()  # and the first one is never asked again
            assert names <= {one.name for one in await other.members()}
            for name in names:
                await other.stop(name)
            await until(other, lambda members: not names & {each.name for each in members})
            await other.close()

    async def test_one_is_stopped_and_the_others_stay_and_a_second_stop_is_harmless(self):
        async with self.pool() as pool:
            await pool.start(2)
            first, second = await serving(pool, 2)
            assert await pool.stop(first.name)
            await pool.stop(first.name)
            assert [one.name for one in await serving(pool, 1)] == [second.name]
            assert not await pool.stop(first.name)
            assert [one.name for one in await pool.members()] == [second.name]

    async def test_an_unknown_name_is_ignored(self):
        async with self.pool() as pool:
            await pool.start(1)
            await serving(pool, 1)
            for name in ("nobody", "", "../nobody", "i-0123456789abcdef0"):
                assert not await pool.stop(name)
            assert len(await pool.members()) == 1

    async def test_closing_leaves_the_instances_alone(self):
        async with self.pool() as pool:
            await pool.start(1)
            [there] = await serving(pool, 1)
            other = self.opened()
            await other.close()
            assert [one.name for one in await pool.members()] == [there.name]
