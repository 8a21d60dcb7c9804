"""The frozen values that pods exchange: prompts, completions, groups, counters."""

from slipstream.records.activity import Activity, WorkerActivity, WorkerKind
from slipstream.records.admission import NEVER_PAUSED, Admission
from slipstream.records.characters import has_surrogates, without_surrogates
from slipstream.records.completion import Completion, FinishReason, Segment, TurnEnd, VersionSpan
from slipstream.records.evaluation import Evaluation, Generated, SourceAccuracy
from slipstream.records.group import Group, HandOut, InsertOutcome, Lease, Purpose
from slipstream.records.group_times import GroupTimes, RolloutTime, StepTimes
from slipstream.records.ledger import START, Cursor, Ledger, ReplayStats
from slipstream.records.logprobs import TeacherLogprobs, TopLogprobs
from slipstream.records.prompt import ChatMessage, Prompt
from slipstream.records.reward import Outcome, Reward, StepReward
from slipstream.records.rollouts import NO_VERSION, ListedRollout, RolloutStatus
from slipstream.records.routed_experts import RoutedExperts, RoutingMismatch
from slipstream.records.turn import Chunk, Sampling, Turn, chunk_since, chunk_until, joined, turn_of

__all__ = [
    "NEVER_PAUSED",
    "NO_VERSION",
    "START",
    "Activity",
    "Admission",
    "ChatMessage",
    "Chunk",
    "Completion",
    "Cursor",
    "Evaluation",
    "FinishReason",
    "Generated",
    "Group",
    "GroupTimes",
    "HandOut",
    "InsertOutcome",
    "Lease",
    "Ledger",
    "ListedRollout",
    "Outcome",
    "Prompt",
    "Purpose",
    "ReplayStats",
    "Reward",
    "RolloutStatus",
    "RolloutTime",
    "RoutedExperts",
    "RoutingMismatch",
    "Sampling",
    "Segment",
    "SourceAccuracy",
    "StepReward",
    "StepTimes",
    "TeacherLogprobs",
    "TopLogprobs",
    "Turn",
    "TurnEnd",
    "VersionSpan",
    "WorkerActivity",
    "WorkerKind",
    "chunk_since",
    "chunk_until",
    "has_surrogates",
    "joined",
    "turn_of",
    "without_surrogates",
]
