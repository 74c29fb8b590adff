"""The types that stages pass on: plain values, errors, units. Imports no other package of the program."""
