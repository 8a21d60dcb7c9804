"""The description of a command, from its line in the list of commands."""


def sentence(text: str) -> str:
    """With a capital letter at the start and a full stop; GPUs and Hugging Face keep theirs."""
    return f"{text[:1].upper()}{text[1:]}."
