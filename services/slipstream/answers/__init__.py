"""Whether two answers are equal: numbers, mathematics, expressions, JSON. Imports nothing else of ours."""
