"""Guesses at what a request says next, and how many of them are worth a row of the next step."""
