"""Parse answers and compare them: numbers, mathematics, arithmetic, JSON.

Imports no other package of Slipstream.
"""
