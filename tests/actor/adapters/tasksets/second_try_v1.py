"""An environment of verifiers with its own loop: the user answers, and the policy tries again."""

import verifiers.v1 as vf

__all__ = ["SecondTryEnv", "SecondTryTaskset"]


class TryData(vf.TaskData):
    answer: str


class TryTask(vf.Task[TryData]):
    pass


class SecondTryTaskset(vf.Taskset[TryTask, vf.TasksetConfig]):
    def load(self):
        yield TryTask(TryData(prompt="2+2=", answer="4"), self.config.task)


class SecondTryConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()


class SecondTryEnv(vf.Env[SecondTryConfig]):
    async def run(self, task, agents):
        tries = 0
        async with agents.solver.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and tries < 3:
                tries += 1
                if segment.last_reply.strip() == task.data.answer:
                    break
                segment = await interaction.turn("wrong, again")
        interaction.trace.record_reward("tries", float(tries))
