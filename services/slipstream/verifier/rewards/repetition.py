"""Does a completion say the same again and again?"""

from slipstream.config.rewards.shapes import RepetitionConfig
from slipstream.types import Prompt
from slipstream.verifier.adapters import EachAnswer
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid
from slipstream.verifier.rewards.ngrams import MAX_CHARACTERS, ngrams


def repetition(config: RepetitionConfig) -> Reward:
    """distinct n-grams / all n-grams - 1; 0 for a text shorter than one.

    See Demystifying Long Chain-of-Thought Reasoning, arXiv:2502.03373, appendix on the repetition penalty.
    """

    def judge(prompt: Prompt, answer: Answer) -> Verdict:
        if len(answer.text) > MAX_CHARACTERS:
            return invalid(f"{len(answer.text)} characters; at most {MAX_CHARACTERS} are read", value=-1.0)
        grams = ngrams(answer.text, config.ngram)
        return Verdict(value=len(set(grams)) / len(grams) - 1.0 if grams else 0.0)

    return EachAnswer(judge)
