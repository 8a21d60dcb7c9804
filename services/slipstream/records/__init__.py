"""The frozen values that pods exchange: prompts, completions, groups, counters."""

from slipstream.records.activity import (
    Activity,
    ListedRollout,
    RolloutStatus,
    WorkerActivity,
    WorkerKind,
)
from slipstream.records.characters import has_surrogates, without_surrogates
from slipstream.records.completion import (
    NO_VERSION,
    Completion,
    FinishReason,
    Segment,
    TurnEnd,
    VersionSpan,
    sampling_order,
)
from slipstream.records.evaluation import Evaluation, Generated, SourceAccuracy
from slipstream.records.group import (
    Group,
    GroupTimes,
    HandOut,
    InsertOutcome,
    Lease,
    Purpose,
    RolloutTime,
    StepTimes,
)
from slipstream.records.json_values import finite, finite_number
from slipstream.records.ledger import NEVER_PAUSED, START, Admission, Cursor, Ledger, ReplayStats
from slipstream.records.logprobs import TeacherLogprobs, TopLogprobs
from slipstream.records.prompt import ChatMessage, Prompt
from slipstream.records.reward import Outcome, Reward, StepReward
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
    "finite",
    "finite_number",
    "has_surrogates",
    "joined",
    "sampling_order",
    "turn_of",
    "without_surrogates",
]
