"""The program that an answer holds."""

FENCE = "```"
LANGUAGES = frozenset({"python", "python3", "py"})


def last_block(text: str) -> str | None:
    """The last closed block of Python of a text in Markdown, or None."""
    found: str | None = None
    block: list[str] | None = None
    ours = False
    for line in text.split("\n"):
        mark = line.strip()
        if block is None:
            if mark.startswith(FENCE):
                block, ours = [], mark.removeprefix(FENCE).strip().lower() in LANGUAGES
        elif mark == FENCE:
            found = "\n".join(block) if ours else found
            block = None
        else:
            block.append(line)
    return found
