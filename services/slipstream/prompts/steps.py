"""The steps of an answer, as its text shows them."""


def split_steps(text: str, separator: str) -> list[str]:
    """The parts between separators without white space around them; those that are empty are left out."""
    return [step for step, _ in steps_with_ends(text, separator)]


def steps_with_ends(text: str, separator: str) -> list[tuple[str, int]]:
    """The steps, each with the characters of the text up to its end.

    A step ends behind the separators and the white space that follow it, the last one with the text.
    """
    found, end = list[tuple[str, int]](), 0
    for part in text.split(separator):
        step, end = part.strip(), min(end + len(part) + len(separator), len(text))
        if step:
            found.append((step, end))
        elif found:
            found[-1] = (found[-1][0], end)
    return found
