"""Ground truths of mathematics, each with right answers, wrong ones, and right but uncomputed ones."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

VARIABLES: Final = "cdghlmost"
"""Letters that are units as well."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A ground truth with right answers, wrong ones, and uncomputed expressions of the right value."""

    kind: str
    truth: str
    same: Sequence[str]
    wrong: Sequence[str]
    uncomputed: Sequence[str] = ()


def whole(chance: random.Random) -> Seed:
    n, a = chance.randrange(11, 9000), chance.randrange(2, 60)
    return Seed(
        "whole number",
        f"{n}",
        [
            f"{n}.0",
            f"+{n}",
            f"x={n}",
            f"{n:,}",
            rf"{n}\text{{ cm}}",
            rf"\text{{{n}}}",
            f"${n}$",
        ],
        [
            f"{n + 1}",
            f"-{n}",
            f"{n}0",
            f"{str(n)[::-1]}1",
            f"{n},{n}",
            f"{n}x",
            f"{n}.5",
            f"{n}i",
            rf"{n} \text{{ or }} 1",
            f"{n}+2t",
        ],
        [
            f"{n - a}+{a}",
            rf"{n * a}/{a}",
            rf"\frac{{{n * a}}}{{{a}}}",
            rf"\sum_{{k=1}}^{{{n}}} 1",
            rf"\int_0^{{{n}}} 1 dx",
            rf"\lim_{{x\to 0}} (x+{n})",
            rf"\begin{{vmatrix}}{n}&0\\0&1\end{{vmatrix}}",
            rf"\sqrt{{{n * n}}}",
            rf"|-{n}|",
            rf"\log_{{2}} 2^{{{n}}}",
        ],
    )


def fraction(chance: random.Random) -> Seed:
    value = Fraction(chance.randrange(1, 60), chance.choice((7, 9, 11, 13)))
    while value.denominator == 1:
        value += Fraction(1, 7)
    value += 1
    p, q, k = value.numerator, value.denominator, chance.randrange(2, 9)
    return Seed(
        "fraction",
        rf"\frac{{{p}}}{{{q}}}",
        [
            f"{p}/{q}",
            rf"\dfrac{{{p}}}{{{q}}}",
            rf"\frac{{{k * p}}}{{{k * q}}}",
            f"{p / q:.9f}",
            rf"y=\frac{{{p}}}{{{q}}}",
            rf"\frac{{-{p}}}{{-{q}}}",
        ],
        [
            rf"\frac{{{q}}}{{{p}}}",
            rf"-\frac{{{p}}}{{{q}}}",
            f"{p / q:.3f}",
            rf"\frac{{{p + 1}}}{{{q}}}",
            rf"{p}\frac{{1}}{{{q}}}",
            f"{p},{q}",
            rf"\frac{{{p}x}}{{{q}}}",
            rf"\frac{{{p}}}{{{q}}}+10^{{-40}}",
        ],
        [
            rf"\frac{{{p + 1}}}{{{q}}}-\frac{{1}}{{{q}}}",
            rf"{p}\cdot\frac{{1}}{{{q}}}",
            rf"\int_0^1 \frac{{{p}}}{{{q}}} dx",
        ],
    )


def surd(chance: random.Random) -> Seed:
    a, b = chance.randrange(2, 40), chance.choice((2, 3, 5, 6, 7, 10))
    return Seed(
        "surd",
        rf"{a}\sqrt{{{b}}}",
        [
            rf"\sqrt{{{a * a * b}}}",
            rf"\sqrt{{{b}}}\cdot {a}",
            rf"{a} \sqrt{{{b}}}",
            rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}",
            f"{a * b**0.5:.9f}",
            rf"{a}√{b}",
            rf"{a}\cdot {b}^{{1/2}}",
        ],
        [
            rf"{a + 1}\sqrt{{{b}}}",
            rf"{b}\sqrt{{{a}}}" if a != b else "1",
            rf"\sqrt{{{a * b}}}" if a > 1 else "1",
            f"{a * b**0.5:.2f}",
            rf"-{a}\sqrt{{{b}}}",
            rf"{a}+\sqrt{{{b}}}",
            rf"{a}\sqrt{{{b}}}+10^{{-50}}",
            rf"{a}\sqrt{{{b}}} h",
        ],
        [
            rf"\frac{{{a}}}{{2}}\sqrt{{{b}}}+\frac{{{a}}}{{2}}\sqrt{{{b}}}",
            rf"2\cdot\frac{{{a}}}{{3}}\cdot\frac{{3}}{{2}}\sqrt{{{b}}}",
        ],
    )


def circle(chance: random.Random) -> Seed:
    a, b = chance.randrange(2, 90), chance.choice((7, 11, 13))
    return Seed(
        "multiple of pi",
        rf"\frac{{{a}\pi}}{{{b}}}" if a % b else rf"{a}\pi",
        [rf"\frac{{{a}}}{{{b}}}\pi", rf"\pi\cdot\frac{{{a}}}{{{b}}}", f"{a}π/{b}"]
        if a % b
        else [f"{a}π", rf"\pi {a}"],
        [
            rf"\frac{{{a}\pi}}{{{b + 2}}}",
            f"{a}",
            rf"{a}\pi^2",
            rf"\frac{{{a + 1}\pi}}{{{b}}}",
            rf"\frac{{{a}e}}{{{b}}}",
            rf"{a}\pi h",
        ],
        [rf"\frac{{{a}\pi}}{{{2 * b}}}+\frac{{{a}\pi}}{{{2 * b}}}"] if a % b else [],
    )


def complex_number(chance: random.Random) -> Seed:
    a, b = chance.randrange(2, 30), chance.randrange(2, 30)
    return Seed(
        "complex number",
        f"{a}+{b}i",
        [
            f"{b}i+{a}",
            f"{a} + {b} i",
            f"{a}+i{b}",
            f"{a}+{b} i",
            rf"{a}+{b}\mathrm{{i}}",
            f"z={a}+{b}i",
            rf"{a} + {b}\cdot i",
        ],
        [
            f"{a}-{b}i",
            f"{b}+{a}i" if a != b else "i",
            f"{a + b}",
            f"{a}+{b}j",
            f"{a}",
            f"({a},{b})",
            f"{a}+{b}",
        ],
        [f"{a + 1}+{b}i-1"],
    )


def point(chance: random.Random) -> Seed:
    a, b = chance.randrange(-20, 0), chance.randrange(1, 20)
    return Seed(
        "point",
        f"({a},{b})",
        [
            f"({a}, {b})",
            rf"\left({a},{b}\right)",
            f"(x,y)=({a},{b})",
            f"{a},{b}",
            f"x={a}, y={b}",
            f"({a}.0,{b})",
        ],
        [
            f"({b},{a})",
            f"[{a},{b}]",
            rf"\{{{a},{b}\}}",
            f"({a},{b},{b})",
            f"({a},{b + 1})",
            f"{a}",
            f"({a},{b}],",
            f"x={b},y={a}",
        ],
        [f"({a},{b - 1}+1)"],
    )


def interval(chance: random.Random) -> Seed:
    a, b = chance.randrange(-20, 0), chance.randrange(1, 20)
    return Seed(
        "interval",
        f"[{a},{b})",
        [rf"{a}\le x<{b}", rf"x\in[{a},{b})", rf"\left[{a}, {b}\right)", f"{b}>x\\ge {a}", f"[{a},{b}.0)"],
        [
            f"({a},{b}]",
            f"[{a},{b}]",
            f"({a},{b})",
            f"[{a},{b + 1})",
            f"{a},{b}",
            rf"{a}<x<{b}",
            rf"x\ge {a}",
            rf"\{{{a},{b}\}}",
            rf"[{a},{b})\cup\{{{b}\}}",
        ],
        [rf"{2 * a}\le 2x<{2 * b}", f"(x-({a}))/(x-{b})\\le 0"],
    )


def listing(chance: random.Random) -> Seed:
    a, b, c = sorted(chance.sample(range(-30, 30), 3))
    return Seed(
        "list",
        f"{a},{b},{c}",
        [
            f"{c},{b},{a}",
            f"{a}, {c}, {b}",
            rf"\{{{a},{b},{c}\}}",
            f"{a}, {b} and {c}",
            rf"x={a},x={b},x={c}",
            rf"{a},{b}\text{{ and }}{c}",
        ],
        [
            f"{a},{a},{b},{c}",
            f"{a},{b}",
            f"{a},{b},{c + 1}",
            f"{a}",
            f"[{a},{b},{c}]",
            f"{a}+{b}+{c}",
        ],
        [f"{a},{b},{c}+0", f"{a},{b},{c + 1}-1"],
    )


def finite_set(chance: random.Random) -> Seed:
    a, b, c = sorted(chance.sample(range(-30, 30), 3))
    return Seed(
        "set",
        rf"\{{{a},{b},{c}\}}",
        [
            rf"\{{{c},{a},{b}\}}",
            rf"\left\{{{a}, {b}, {c}\right\}}",
            rf"\{{{a},{b},{c},{c}\}}",
            f"{a},{b},{c}",
        ],
        [
            rf"\{{{a},{b}\}}",
            f"({a},{b},{c})",
            rf"\{{{a},{b},{c + 1}\}}",
            f"{a},{b},{c},{c}",
            rf"\{{{a},{b},{c},0.5\}}",
            f"{b}",
        ],
    )


def polynomial(chance: random.Random) -> Seed:
    a, b = chance.randrange(2, 20), chance.randrange(21, 40)
    letter = chance.choice("xynk" + VARIABLES)
    return Seed(
        "polynomial",
        f"{letter}^2+{a + b}{letter}+{a * b}",
        [
            f"({letter}+{a})({letter}+{b})",
            f"{a * b}+{letter}^2+{a + b}{letter}",
            f"{letter}^{{2}}+{a + b}\\cdot {letter}+{a * b}",
            f"{letter}({letter}+{a + b})+{a * b}",
        ],
        [
            f"{letter}^2+{a + b}{letter}",
            f"{letter}^2+{a + b}{letter}-{a * b}",
            f"({letter}-{a})({letter}-{b})",
            f"{a * b}",
            f"q^2+{a + b}q+{a * b}",
            f"{letter}^2+{a + b + 1}{letter}+{a * b}",
            f"{letter}^2+{a + b}+{a * b}",
        ],
        [
            rf"\int (2{letter}+{a + b}) d{letter}+{a * b}",
            rf"\frac{{d}}{{d{letter}}}(\frac{{{letter}^3}}{{3}}+"
            rf"\frac{{{a + b}{letter}^2}}{{2}}+{a * b}{letter})",
        ],
    )


def last_variable(chance: random.Random) -> Seed:
    a, b, letter = chance.randrange(2, 30), chance.randrange(2, 30), chance.choice(VARIABLES)
    return Seed(
        "variable in last place",
        f"{a}+{b}{letter}",
        [f"{b}{letter}+{a}", f"{a} + {b} {letter}", rf"{a}+{letter}\cdot {b}"],
        [
            f"{a + b}",
            f"{a}+{b}",
            f"{a}+{b}q",
            f"{a}",
            f"{a}+{b}{letter} {letter}",
            f"{a * b}{letter}",
            f"{a}{letter}+{b}" if a != b else "1",
        ],
    )


def equation(chance: random.Random) -> Seed:
    a, b, k = chance.randrange(2, 20), chance.randrange(1, 20), chance.randrange(2, 7)
    return Seed(
        "equation",
        f"y={a}x+{b}",
        [f"y={b}+{a}x", f"{k}y={k * a}x+{k * b}", f"{a}x-y+{b}=0", f"y-{b}={a}x", f"{a}x+{b}", f"{a}x+{b}=y"],
        [
            f"y={a}x-{b}",
            f"y={a + 1}x+{b}",
            f"x={a}y+{b}",
            f"{b}",
            f"y={b}",
            f"y^2=({a}x+{b})^2",
            "y=y",
            f"y\\le {a}x+{b}",
            f"{a}x+{b}=0",
        ],
    )


def vector_equation(chance: random.Random) -> Seed:
    a, b, c = (chance.randrange(1, 20) for _ in range(3))
    return Seed(
        "equation without a real letter",
        rf"\vec{{r}}=({a},{b},{c})",
        [f"({a},{b},{c})", rf"\vec{{r}}=({a}, {b}, {c})"],
        [f"({a},{b},{c + 1})", rf"\vec{{r}}=({a},{b},{c + 1})", f"{a}", r"\vec{r}=\vec{r}"],
    )


def value_of_a_function(chance: random.Random) -> Seed:
    a = chance.randrange(3, 90)
    b = 7 * a + 5  # differs for each ground truth, because it is an answer too
    return Seed(
        "equation without a letter",
        f"f({a})={b}",
        [f"{b}", f"f({a}) = {b}", f"f({a})={b}.0"],
        [f"f({a})={b + 1}", f"{a}", f"f({a})=f({a})", f"{a}={b}" if a != b else "1"],
        [f"f({a})={b - 1}+1"],
    )


def matrix(chance: random.Random) -> Seed:
    a, b, c, d = (chance.randrange(-9, 10) for _ in range(4))
    body = rf"{a}&{b}\\{c}&{d}"
    return Seed(
        "matrix",
        rf"\begin{{pmatrix}}{body}\end{{pmatrix}}",
        [
            rf"\begin{{bmatrix}}{body}\end{{bmatrix}}",
            rf"\left[\begin{{array}}{{cc}}{body}\end{{array}}\right]",
            rf"A=\begin{{pmatrix}} {a} & {b} \\ {c} & {d} \end{{pmatrix}}",
        ],
        [
            rf"\begin{{pmatrix}}{a + 1}&{b}\\{c}&{d}\end{{pmatrix}}",
            rf"\begin{{pmatrix}}{a}&{b}\end{{pmatrix}}",
            f"{a},{b},{c},{d}",
            rf"\begin{{pmatrix}}{a}&{b}\\{c}&{d}+10^{{-30}}\end{{pmatrix}}",
        ],
        [rf"\begin{{pmatrix}}{a - 1}&{b}\\{c}&{d}\end{{pmatrix}}+\begin{{pmatrix}}1&0\\0&0\end{{pmatrix}}"],
    )


def near_one(chance: random.Random) -> Seed:
    n, sign = chance.randrange(60, 4000), chance.choice("+-")
    base = chance.choice((2, 3, 10))
    return Seed(
        "almost a whole number",
        rf"1{sign}\frac{{1}}{{{base}^{{{n}}}}}",
        [rf"1{sign}{base}^{{-{n}}}", rf"\frac{{{base}^{{{n}}}{sign}1}}{{{base}^{{{n}}}}}"],
        ["1", rf"1{sign}\frac{{1}}{{{base}^{{{n + 1}}}}}", f"1{'-' if sign == '+' else '+'}{base}^{{-{n}}}"],
    )


KINDS: Final = (
    *(whole, fraction, surd, circle, complex_number, point, interval, listing, finite_set, polynomial),
    *(last_variable, equation, vector_equation, value_of_a_function, matrix, near_one),
)
