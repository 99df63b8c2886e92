"""A user's machine: a home of its own, in which Pi is installed by the command of the docs."""

import asyncio
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from reefcli.errors import CommandFailed

_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> list[str]:
        """The lines that Reef's own part has printed."""
        lines = self.err.splitlines()
        return [line.removeprefix("reef: ") for line in lines if line.startswith("reef: ")]


@dataclass(frozen=True, slots=True)
class Machine:
    """A user with the home `home`. `agents`: the folder of programs that are fetched already."""

    home: Path
    agents: Path

    async def install(self, gateway_url: str) -> Done:
        """Run the installing command. The agent is not fetched from npm a second time."""
        root = self.home / ".local/share/reef/pi"
        root.mkdir(parents=True)
        (root / "app").symlink_to((self.agents / "pi/app").resolve(), target_is_directory=True)
        command = (
            'curl -fsS -H "Authorization: Bearer $REEF_TOKEN"'
            f" '{gateway_url}/reef/harness/install?adapter=pi' | bash"
        )
        return await self._run("bash", "-c", command, folder=self.home)

    async def pi(self, *words: str, folder: Path | None = None) -> Done:
        """Run `reef-pi`."""
        place = folder or self.home
        place.mkdir(parents=True, exist_ok=True)
        return await self._run(str(self.home / ".local/bin/reef-pi"), *words, folder=place)

    async def _run(self, *words: str, folder: Path) -> Done:
        own = {"HOME": str(self.home), "REEF_TOKEN": "demo", "LANG": "C.UTF-8"}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1,localhost", **own},
        )
        try:
            async with asyncio.timeout(_WITHIN_S):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise CommandFailed(f"{words[0]} has not ended in {_WITHIN_S:g} s") from None
        done = Done(process.returncode or 0, out.decode(), err.decode())
        if done.code:
            command = " ".join(words)[:200]
            raise CommandFailed(f"{command} ended with {done.code}: {done.err[-500:]}")
        return done


def missing() -> str:
    """Return the programs that the agent needs and this machine lacks."""
    return ", ".join(name for name in ("node", "npm", "curl", "bash") if not shutil.which(name))
