"""Parse one LaTeX expression by recursive descent into a SymPy expression; never `eval`.

    sum     = ["+" | "-"] product { ("+" | "-") product }
    product = chunk { ("\\cdot" | "*" | "/" | ...) chunk }
    chunk   = power { power }                    factors side by side
    power   = atom { "!" | "^" argument | "'" }
    atom    = number | letter | word | group | command

Numbers side by side are an error, except a mixed number (2\\frac{1}{3}), which is a sum. `unfinished` records
the operations that the answer leaves uncomputed. SymPy computes their values.
"""

from abc import ABC, abstractmethod
from typing import Any, Final

import sympy

from slipstream.answers import latex_input, latex_tokens
from slipstream.answers import latex_operators as operators
from slipstream.answers.latex_reader import BARS, CLOSING, ENDING, OVER, TIMES, Reader

APPLIED: Final = frozenset("fgF")
"""Letters that are functions if a bracket follows; other letters are factors."""
CONSTANTS: Final = {"e": sympy.E, "i": sympy.I}
DOTS: Final = sympy.Symbol("dots", real=True)


class Expressions(Reader, ABC):
    """Consumes tokens from left to right; each method parses one line of the grammar."""

    def sum(self) -> Any:
        terms, sign = [], self._sign()
        while True:
            term = self.product()
            terms.append(-term if sign < 0 else term)
            if not (self.next.kind == "sign" and self.next.text in "+-"):
                break
            sign = self._sign()
        if len(terms) == 1:
            return terms[0]
        total = _added(terms)
        self.unfinished |= operators.sum_unfinished(terms, total)
        return total

    def _sign(self) -> int:
        sign = 1
        while taken := self.take("+", "-"):
            sign = -sign if taken == "-" else sign
        return sign

    def product(self) -> Any:
        above: list[Any] = []
        below: list[Any] = []
        start = self.place
        above += self.chunk()
        while True:
            if self.take(*TIMES):
                sign = self._sign()
                above += [*self.chunk(), *([sympy.S.NegativeOne] if sign < 0 else [])]
            elif self.take(*OVER):
                sign = self._sign()
                below.append(sign * multiplied(self.chunk()))
            elif self.take("bmod", "mod"):
                above, below = [self._rest(above, below, multiplied(self.chunk()))], []
            else:
                break
        if len(above) == 1 and not below:
            return above[0]
        scientific = not below and len(above) == 2 and self._is_scientific(start)
        self.unfinished |= operators.product_unfinished(above, below, scientific=scientific)
        return multiplied([*above, *(factor**-1 for factor in below)])

    def _rest(self, above: list[Any], below: list[Any], divisor: Any) -> Any:
        self.unfinished.add(operators.ARITHMETIC)
        return sympy.Mod(multiplied([*above, *(factor**-1 for factor in below)]), divisor)

    def _is_scientific(self, start: int) -> bool:
        number, times, ten, power = [*self.tokens[start : start + 4], *[latex_tokens.END] * 4][:4]
        return number.kind == "number" and times.text in TIMES and (ten.text, power.text) == ("10", "^")

    def chunk(self, *, argument: bool = False) -> list[Any]:
        """Parse factors side by side; the argument of a function ends at the next function."""
        factors: list[Any] = []
        bare = False
        while self._starts_factor(argument and bool(factors)):
            start = self.place
            factor = self._mixed() or self._power()
            number = all(
                token.kind == "number" or token.text in "{}" for token in self.tokens[start : self.place]
            )
            if bare and number:
                raise latex_input.UnsupportedExpression("two numbers side by side")
            bare = number
            factors.append(factor)
        if len(factors) > 1 and DOTS in factors:
            raise latex_input.UnsupportedExpression("dots in a product")
        if not factors:
            raise latex_input.UnsupportedExpression(
                f"an operand is needed where `{self.next.text or 'the end'}` stands"
            )
        if len(factors) > 1 and argument:
            self.unfinished |= operators.product_unfinished(factors, [], scientific=False)
        return factors

    def _starts_factor(self, argument: bool) -> bool:
        token = self.next
        match token.kind:
            case "number":
                return True
            case "letter":
                return not (self.integrals and self.is_differential())
            case "word":
                return not self.after_operand()
            case "command":
                if argument and token.text in operators.NAMED:
                    return False
                return token.text not in ENDING or (token.text in BARS and self.opens_bars())
            case "sign":
                return token.text in "({[" or (token.text == "|" and self.opens_bars())
        return False

    def _mixed(self) -> Any:
        """Parse a mixed number, 2\\frac{1}{3}, which is a sum; None for anything else."""
        integer, fraction = [*self.tokens[self.place : self.place + 2], latex_tokens.END, latex_tokens.END][
            :2
        ]
        if not (integer.text.isdigit() and fraction.text in latex_tokens.FRACTIONS):
            return None
        start, unfinished = self.place, set(self.unfinished)
        self.place += 2
        above, below = self.argument(), self.argument()
        if not self.plain_number(start + 2):
            self.place, self.unfinished = start, unfinished
            return None
        if not below:
            raise latex_input.UnsupportedExpression("a division by zero")
        if above >= below:
            self.unfinished.add(operators.ARITHMETIC)
        return int(integer.text) + above / below

    def _power(self) -> Any:
        value = self.atom()
        while True:
            if self.take("!"):
                value = self._factorial(value)
            elif self.take("'"):
                pass  # feet or minutes; `notation` has rewritten the primes of letters
            elif self.take("^"):
                value = self._raised(value)
            else:
                return value

    def _factorial(self, of: Any) -> Any:
        if operators.constant(of):
            self.unfinished.add(operators.COUNTING)
        return sympy.factorial2(of) if self.take("!") else sympy.factorial(of)

    def _raised(self, base: Any) -> Any:
        if self.take("circ") or self.group_of("circ"):
            return base
        if operators.matrix(base) and (self.letter("T") or self.group_of("T") or self.take("top")):
            self.unfinished.add(operators.MATRICES)
            return base.T
        exponent = self.argument()
        value = raised(base, exponent)
        self.unfinished |= operators.power_unfinished(base, exponent, value)
        return value

    def argument(self) -> Any:
        """Parse the argument of a command or an exponent: a group, or one operand with its sign."""
        if self.next.kind == "sign" and self.next.text == "{":
            return self.group("{")
        sign = self._sign()
        return sign * self.atom()

    def group(self, opening: str) -> Any:
        """Parse an expression in brackets."""
        self.need(opening)
        bars, self.bars = self.bars, []
        value = self.sum()
        if self.take("choose"):
            value = self.binomial(value, self.sum())
        self.units()
        self.need(CLOSING[opening])
        self.bars = bars
        return value

    def binomial(self, above: Any, below: Any) -> Any:
        """Return a binomial coefficient."""
        if operators.constant(above) and operators.constant(below):
            self.unfinished.add(operators.COUNTING)
        return sympy.binomial(above, below)

    def units(self) -> None:
        """Skip units after an operand: 5\\text{ m}/\\text{s}^2."""
        while self.next.kind == "word":
            self.place += 1
            if self.take("^"):
                self.argument()
            if (
                self.next.text in ("/", "cdot")
                and self.place + 1 < len(self.tokens)
                and self.tokens[self.place + 1].kind == "word"
            ):
                self.place += 1

    def atom(self) -> Any:
        """Parse one operand. Errors: UnsupportedExpression when the next token begins no operand."""
        token = self.next
        if token.kind == "number":
            return self._number()
        if token.kind == "letter":
            return self._symbol()
        if token.kind == "word":
            return self._word()
        if token.kind == "sign" and token.text in "({[":
            return self.group(token.text)
        if token.text in BARS:
            return self._absolute()
        if token.kind == "command":
            return self._command()
        raise latex_input.UnsupportedExpression(
            f"an operand is needed where `{token.text or 'the end'}` stands"
        )

    def _number(self) -> Any:
        text = self.next.text
        self.place += 1
        if self.next.text == "_":
            return self.symbol(text + self.subscript())  # a number with a base is compared by its digits
        self.decimal |= "." in text
        return sympy.Integer(int(text)) if text.isdigit() else sympy.Rational(text.rstrip("."))

    def _symbol(self) -> Any:
        letter = self.next.text
        self.place += 1
        subscript = self.subscript()
        if letter in APPLIED and (applied := self._applied(letter + subscript)) is not None:
            return applied
        if not subscript and letter not in self.bound and letter in CONSTANTS:
            return CONSTANTS[letter]
        return self.symbol((letter.lower() if self.one_case else letter) + subscript)

    def symbol(self, name: str) -> Any:
        """Return a symbol for a real number."""
        return sympy.Symbol(name, real=True)

    def _applied(self, name: str) -> Any:
        """Parse the application of an unknown function; None if no bracket follows, so that it is a
        variable."""
        start = self.place
        power = f"^{self.argument()}" if self.take("^") else ""
        if not (self.next.kind == "sign" and self.next.text == "("):
            self.place = start
            return None
        arguments = self.arguments()
        if any(letter.name == name for argument in arguments for letter in argument.free_symbols):
            self.place = start  # g(g + 1) is a product
            return None
        return sympy.Function(name + power, real=True)(*arguments)

    def arguments(self) -> list[Any]:
        """Parse the arguments of a function: expressions in brackets, or factors without brackets."""
        opening = self.take("(", "[", "{", "lbrace")
        if not opening:
            return [multiplied(self.chunk(argument=True))]
        values = [self.sum()]
        while self.take(",", ";"):
            values.append(self.sum())
        self.need(CLOSING[opening])
        return values

    def _word(self) -> Any:
        word = self.next.text.strip("() ")
        self.place += 1
        subscript = self.subscript()
        if len(word) == 1 and word.isalpha() and not subscript:
            return CONSTANTS.get(word) or self.symbol(word.lower() if self.one_case else word)
        return self.symbol("".join(word.split()).casefold() + subscript)

    def _absolute(self) -> Any:
        opening = self.next.text
        self.bars.append(self.place)
        self.place += 1
        value = self.sum()
        self.bars.pop()
        if self.next.text not in BARS:
            raise latex_input.UnsupportedExpression(f"`{opening}` is not closed")
        self.place += 1
        return self.absolute(value)

    def absolute(self, value: Any) -> Any:
        """Return the absolute value of a number, or the norm of a matrix."""
        if operators.matrix(value):
            self.unfinished.add(operators.MATRICES)
            return value.norm()
        if operators.constant(value):
            self.unfinished.add(operators.ARITHMETIC)
        return sympy.Abs(value)

    @abstractmethod
    def command(self, name: str) -> Any:
        """Parse the arguments of the command that was just consumed. Errors: UnsupportedExpression."""

    def _command(self) -> Any:
        name = self.next.text
        if name in ENDING:
            raise latex_input.UnsupportedExpression(f"an operand is needed where `{name}` stands")
        self.place += 1
        return self.command(name)


def raised(base: Any, exponent: Any) -> Any:
    """Return a power.

    Errors: UnsupportedExpression for a matrix that is not square, or whose exponent is not an integer.
    """
    if operators.matrix(base):
        if not getattr(exponent, "is_Integer", False) or not base.is_square:
            raise latex_input.UnsupportedExpression("a power of a matrix")
        return base**exponent
    return base**exponent


def multiplied(factors: list[Any]) -> Any:
    """Return the product of the factors in order; products of matrices do not commute."""
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return product


def _added(terms: list[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
