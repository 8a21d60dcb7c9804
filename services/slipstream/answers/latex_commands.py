"""Parse the arguments of LaTeX commands: fractions, roots, functions, sums, integrals, limits, matrices."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import sympy

from slipstream.answers import latex_operators as operators
from slipstream.answers import latex_reader, latex_tokens
from slipstream.answers.latex_grammar import DOTS, Expressions, multiplied, raised
from slipstream.answers.latex_input import UnsupportedExpression

Command = Callable[[Expressions, str], Any]


def named(reader: Expressions, name: str) -> Any:
    """Parse a function or a named letter. Errors: UnsupportedExpression for another command."""
    if name in operators.FUNCTIONS:
        return _function(reader, name)
    if name in operators.OF_MANY or name in operators.OF_A_MATRIX:
        return _of_many(reader, name)
    if name in operators.GREEK:
        return reader.symbol(name + reader.subscript())
    if name in operators.ACCENTS:
        return reader.symbol(f"{name} {''.join(_group(reader))}" + reader.subscript())
    raise UnsupportedExpression(f"unknown command \\{name}")


def _group(reader: Expressions) -> list[str]:
    """Consume a group, or one token, and return the texts of its tokens."""
    start, depth = reader.place, 0
    while reader.next is not latex_tokens.END:
        depth += (reader.next.text == "{") - (reader.next.text == "}")
        reader.place += 1
        if not depth:
            break
    return [token.text for token in reader.tokens[start : reader.place] if token.text not in "{}"]


def _fraction(reader: Expressions, _name: str) -> Any:
    start = reader.place
    above_text, below_text = _group(reader), _group(reader)
    if len(below_text) > 1 and above_text[:1] == below_text[:1] and above_text[0] in ("d", "partial"):
        if len(above_text) > 1:  # dy/dx
            return reader.symbol("/".join(map("".join, (above_text, below_text))))
        reader.unfinished.add("a derivative")
        return sympy.Derivative(reader.product(), reader.symbol(below_text[1]))
    reader.place = start
    above, below = reader.argument(), reader.argument()
    reader.unfinished |= operators.product_unfinished([above], [below], scientific=False)
    return multiplied([above, raised(below, sympy.S.NegativeOne)])


def _root(reader: Expressions, _name: str) -> Any:
    degree: Any = sympy.Integer(2)
    if reader.take("["):
        degree = reader.sum()
        reader.need("]")
    elif reader.next.kind == "number" and len(reader.next.text) > 1:
        raise UnsupportedExpression("a root without braces of a number with several digits")
    of = reader.argument()
    real = operators.constant(of) and of.is_negative and degree.is_Integer and degree % 2 == 1
    value = -((-of) ** (1 / degree)) if real else of ** (1 / degree)
    reader.unfinished |= operators.power_unfinished(of, 1 / degree, value)
    return value


def _function(reader: Expressions, name: str) -> Any:
    power: Any = None
    if reader.take("^"):
        power = reader.argument()
        if power == -1 and name in operators.INVERSES:
            name, power = operators.INVERSES[name], None
    arguments = reader.arguments()
    if len(arguments) != 1:
        raise UnsupportedExpression(f"\\{name} has one argument")
    value = operators.FUNCTIONS[name](arguments[0])
    reader.unfinished |= operators.function_unfinished(value, *arguments)
    return value if power is None else value**power


def _logarithm(reader: Expressions, name: str) -> Any:
    base, power = sympy.Integer(10), None
    for _ in range(2):
        if reader.take("_"):
            base = reader.argument()
        if reader.take("^"):
            power = reader.argument()
    arguments = reader.arguments()
    if len(arguments) != 1:
        raise UnsupportedExpression("a logarithm has one argument")
    value = sympy.log(arguments[0], base)
    if operators.constant(value) and value.is_Rational:
        reader.unfinished.add(operators.FUNCTION)
    return value if power is None else value**power


def _of_many(reader: Expressions, name: str) -> Any:
    arguments = reader.arguments()
    if name in operators.OF_A_MATRIX:
        if len(arguments) != 1 or not operators.matrix(arguments[0]):
            raise UnsupportedExpression(f"\\{name} of something that is no matrix")
        reader.unfinished.add(operators.MATRICES)
        return operators.OF_A_MATRIX[name](arguments[0])
    if all(map(operators.constant, arguments)):
        reader.unfinished.add(operators.FUNCTION)
    elif name in ("gcd", "lcm"):  # with variables, SymPy would compute the gcd of polynomials
        return sympy.Function(name, real=True)(*sorted(arguments, key=str))
    return operators.OF_MANY[name](*arguments)


def _binomial(reader: Expressions, _name: str) -> Any:
    return reader.binomial(reader.argument(), reader.argument())


def _rounded(reader: Expressions, name: str) -> Any:
    of = reader.sum()
    reader.need(latex_reader.CLOSING[name])
    if operators.constant(of):
        reader.unfinished.add(operators.ARITHMETIC)
    return sympy.floor(of) if name == "lfloor" else sympy.ceiling(of)


def _absolute(reader: Expressions, name: str) -> Any:
    of = reader.sum()
    reader.need(latex_reader.CLOSING[name])
    return reader.absolute(of)


def _range(reader: Expressions) -> tuple[Any, Any, Any]:
    """Parse the range of \\sum_{k=1}^{n}: the variable, its first and its last value."""
    reader.need("_")
    reader.need("{")
    letter = reader.next.text
    if reader.next.kind != "letter":
        raise UnsupportedExpression("a sum or a product goes over one letter")
    reader.bound.append(letter)
    reader.place += 1
    reader.need("=")
    first = reader.sum()
    reader.need("}")
    reader.need("^")
    return reader.symbol(letter.lower() if reader.one_case else letter), first, reader.argument()


def _series(reader: Expressions, name: str) -> Any:
    over = _range(reader)
    kind = sympy.Sum if name == "sum" else sympy.Product
    value = kind(reader.product(), over)
    reader.bound.pop()
    reader.unfinished.add("a sum" if name == "sum" else "a product")
    return value


def _limit(reader: Expressions, _name: str) -> Any:
    reader.need("_")
    reader.need("{")
    letter = reader.symbol(reader.next.text)
    reader.place += 1
    if not reader.take("to", "rightarrow"):
        raise UnsupportedExpression("a limit goes to a value")
    value = reader.sum()
    side = "-" if reader.take("^") and "-" in _group(reader) else "+" if reader.take("+") else "+-"
    reader.need("}")
    reader.unfinished.add("a limit")
    return sympy.Limit(reader.product(), letter, value, side)


def _integral(reader: Expressions, _name: str) -> Any:
    bounds: list[Any] = []
    if reader.take("_"):
        bounds.append(reader.argument())
        reader.need("^")
        bounds.append(reader.argument())
    reader.integrals += 1
    of = sympy.Integer(1) if reader.is_differential() else reader.sum()
    reader.integrals -= 1
    if not reader.is_differential():
        raise UnsupportedExpression("an integral without a differential")
    reader.place += 1
    letter = reader.symbol(reader.next.text)
    reader.place += 1
    reader.unfinished.add("an integral")
    return sympy.Integral(of, (letter, *bounds))


def _matrix(reader: Expressions, begin: str) -> Any:
    name = begin.removeprefix("begin ")
    rows: list[list[Any]] = [[]]
    while not reader.take(f"end {name}"):
        rows[-1].append(reader.sum())
        if reader.take(r"\\"):
            if reader.next.text != f"end {name}":
                rows.append([])
        elif not reader.take("&") and reader.next.text != f"end {name}":
            raise UnsupportedExpression("a matrix that does not end")
    if len({len(row) for row in rows}) != 1:
        raise UnsupportedExpression("rows of a matrix of different lengths")
    matrix = sympy.ImmutableMatrix(rows)
    if name != "vmatrix":
        return matrix
    reader.unfinished.add("a determinant")
    return matrix.det()


COMMANDS: Final[Mapping[str, Command]] = {
    **dict.fromkeys(latex_tokens.FRACTIONS, _fraction),
    **dict.fromkeys(("binom", "dbinom", "tbinom"), _binomial),
    **dict.fromkeys(("log", "lg"), _logarithm), **dict.fromkeys(("lfloor", "lceil"), _rounded),
    **dict.fromkeys(("lvert", "lVert"), _absolute), **dict.fromkeys(("sum", "prod"), _series),
    **{f"begin {name}": _matrix for name in latex_reader.MATRICES},
    "sqrt": _root, "lim": _limit, "int": _integral,
    **dict.fromkeys(("dots", "ldots", "cdots", "dotsc", "dotsb"), lambda _reader, _name: DOTS),
    "pi": lambda _reader, _name: sympy.pi, "infty": lambda _reader, _name: sympy.oo,
}  # fmt: skip
"""Commands with a syntax of their own, by name."""


class Commands(Expressions):
    """The grammar of expressions with its commands."""

    def command(self, name: str) -> Any:
        """Parse the arguments of a command. Errors: UnsupportedExpression for an unknown command."""
        return COMMANDS.get(name, named)(self, name)
