"""Whether two answers are equal: numbers, mathematics, expressions, JSON. Imports no other package of ours."""
