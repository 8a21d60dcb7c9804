"""The steps of an answer: the parts of its text between separators."""


def split_steps(text: str, separator: str) -> list[str]:
    """Return the non-empty parts between separators, without surrounding white space."""
    return [step for step, _ in steps_with_ends(text, separator)]


def steps_with_ends(text: str, separator: str) -> list[tuple[str, int]]:
    """Return the steps, each with the position of its end in the text, in characters.

    A step ends after the separators and white space that follow it; the last step ends with the text.
    """
    steps, end = list[tuple[str, int]](), 0
    for part in text.split(separator):
        step, end = part.strip(), min(end + len(part) + len(separator), len(text))
        if step:
            steps.append((step, end))
        elif steps:
            steps[-1] = (steps[-1][0], end)
    return steps
