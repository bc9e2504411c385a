"""The recipe of the lab model; README.md beside this file."""
