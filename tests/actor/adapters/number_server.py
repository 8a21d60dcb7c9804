"""An environment of the package openenv, as its users write them: `python number_server.py PORT SESSIONS`."""

import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Guess(Action):
    guess: int


class Hint(Observation):
    hint: str


class GuessNumber(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._secret = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, largest: int = 9) -> Hint:
        self._secret = random.Random(seed).randint(0, largest)
        self._state = State(episode_id=episode_id, step_count=0)
        return Hint(hint=f"0 to {largest}")

    def step(self, action: Guess) -> Hint:
        if action.guess > 99:
            raise RuntimeError("the guess broke the environment")
        self._state.step_count += 1
        if action.guess == self._secret:
            return Hint(hint="right", done=True, reward=1.0)
        return Hint(hint="larger" if action.guess < self._secret else "smaller", reward=-0.1)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_app(GuessNumber, Guess, Hint, max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
