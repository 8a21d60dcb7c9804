"""The log has one structured line for each event."""

import io
import re

from slipstream.telemetry.logs import LEVELS, Log, read_event


def written(**values: object) -> str:
    stream = io.StringIO()
    Log(pod="learner", level="debug", stream=stream).info("step", **values)
    return stream.getvalue()


def test_a_line_has_time_level_pod_event_and_pairs() -> None:
    line = written(step=3, reward=0.123456, worker="w-1")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info    learner: step step=3 reward=0.1235 worker=w-1\n",
        line,
    )


def test_a_value_with_spaces_quotes_or_lines_is_one_quoted_value_on_one_line() -> None:
    line = written(error='lost "w 1"\nat once', empty="", path="café → x")
    assert line.count("\n") == 1
    assert r'error="lost \"w 1\"\nat once" empty="" path="café → x"' in line


def test_an_event_without_values_ends_without_a_space() -> None:
    assert written().endswith("learner: step\n")


def test_events_below_the_level_are_not_written() -> None:
    for least, level in enumerate(LEVELS):
        stream = io.StringIO()
        log = Log(pod="p", level=level, stream=stream)
        for write in (log.debug, log.info, log.warning, log.error):
            write("event")
        assert [line.split()[1] for line in stream.getvalue().splitlines()] == list(LEVELS[least:])


def test_a_written_line_is_read_back() -> None:
    values = {"prompt": "file/3", "detail": 'a "b"\nc = d', "empty": "", "count": "3", "odd": "x=y"}
    stream = io.StringIO()
    Log(pod="rollout-0", stream=stream).warning("reward failed", **values)

    event = read_event(stream.getvalue().rstrip("\n"))

    assert event is not None
    assert (event.level, event.pod, event.event) == ("warning", "rollout-0", "reward failed")
    assert event.values == values


def test_lines_of_other_programs_are_no_events() -> None:
    assert read_event("Traceback (most recent call last):") is None
    assert read_event('{"step": 1}') is None
    assert read_event("") is None


def test_no_control_character_of_a_caller_reaches_a_terminal() -> None:
    line = written(peer="a\x1b[2J\rb", reason="\x9b31m\u202e\u2028 \x7f\x00", path="\ud800")
    assert line.rstrip("\n").isprintable()
    assert r'peer="a\u001b[2J\rb" reason="\u009b31m\u202e\u2028 \u007f\u0000" path="\ud800"' in line
