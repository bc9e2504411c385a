"""The prefix cache: what was computed for one sequence, found again for the next. Ids, tokens and bytes only."""
