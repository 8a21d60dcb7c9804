"""The part of the reward `format` that needs no pattern: tags in order, and one \\boxed{}."""

from dataclasses import dataclass

from slipstream.answers.boxed import last_boxed


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The configured tags and box. Each check takes time linear in the length of the text."""

    tags: tuple[str, ...]
    boxed: bool

    def holds(self, text: str) -> bool:
        """Return whether each tag occurs once, in order and around some text, and the one box closes."""
        return self._tags_hold(text) and (not self.boxed or _one_box(text))

    def _tags_hold(self, text: str) -> bool:
        position = 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            start, end = text.find(opening), text.find(closing)
            if text.count(opening) != 1 or text.count(closing) != 1 or start < position:
                return False
            if not text[start + len(opening) : end].strip():  # empty, or the closing tag comes first
                return False
            position = end + len(closing)
        return True


def _one_box(text: str) -> bool:
    boxed = text.replace("\\fbox", "")  # \\fbox{\\boxed{…}} is one box
    return boxed.count("\\boxed{") == 1 and bool((last_boxed(boxed) or "").strip())
