"""A taskset of verifiers with a tool server, which the package starts for each episode."""

import verifiers.v1 as vf

__all__ = ["LookupTaskset"]


class LookupToolset(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = "words"

    @vf.tool
    async def look_up(self, word: str) -> str:
        """Return the meaning of a word."""
        return f"{word} means 42"


class LookupTask(vf.Task[vf.TaskData]):
    @classmethod
    def toolsets(cls, config):
        return [LookupToolset(vf.ToolsetConfig())]

    @vf.reward
    async def looked_up(self, trace: vf.Trace) -> float:
        return float(any("means 42" in str(message.content) for message in trace.tool_messages))


class LookupTaskset(vf.Taskset[LookupTask, vf.TasksetConfig]):
    def load(self):
        yield LookupTask(vf.TaskData(prompt="What does `slip` mean?"), self.config.task)


if __name__ == "__main__":
    LookupToolset.run()
