"""The form of a completion without a pattern: tags in order, and a box."""

from dataclasses import dataclass

from slipstream.answers.boxed import last_boxed


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is asked; each check takes time linear in the text."""

    tags: tuple[str, ...]
    boxed: bool

    def holds(self, text: str) -> bool:
        """Whether the tags come once each, in order and around something, and the one box closes."""
        return self._tags_hold(text) and (not self.boxed or _one_box(text))

    def _tags_hold(self, text: str) -> bool:
        position = 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            start, end = text.find(opening), text.find(closing)
            if text.count(opening) != 1 or text.count(closing) != 1 or start < position:
                return False
            if not text[start + len(opening) : end].strip():  # nothing inside, or closed before it opens
                return False
            position = end + len(closing)
        return True


def _one_box(text: str) -> bool:
    boxed = text.replace("\\fbox", "")  # another box, which does not count here
    return boxed.count("\\boxed{") == 1 and bool((last_boxed(boxed) or "").strip())
