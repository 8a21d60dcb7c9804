"""A taskset as users of verifiers write them: `1+1=`; a tool server; and an environment with a hint."""

import os

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumsData(vf.TaskData):
    answer: str
    trouble: str = ""


class SumsTask(vf.Task[SumsData]):
    async def setup(self, trace: vf.Trace) -> None:
        print("an environment that prints")
        if self.data.trouble == "raises":
            raise RuntimeError("the setup broke")
        if self.data.trouble == "ends":
            os._exit(3)

    @vf.reward(weight=2.0)
    async def correct(self, task: SumsData, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == task.answer)

    @vf.metric
    async def characters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    largest: int = 9


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self):
        for a in range(self.config.largest):
            data = SumsData(prompt=f"{a}+1=", system_prompt="Add.", answer=str(a + 1))
            yield SumsTask(data, self.config.task)
