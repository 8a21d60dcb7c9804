"""The error of a wrong specification, with a field each for the part, the reason and the remedy."""


class InvalidPart(ValueError):
    """A part of an algorithm, or a combination of parts, that is known to be wrong.

    `part` is the name of the part, with the parameter at fault: `aggregation.max_tokens`. `remedy` is empty
    where the reason implies it.
    """

    def __init__(self, part: str, reason: str, *, remedy: str = "") -> None:
        super().__init__(f"{part}: {reason}; {remedy}" if remedy else f"{part}: {reason}")
        self.part, self.reason, self.remedy = part, reason, remedy
