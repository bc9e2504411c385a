"""Speculation: who proposes drafts, how often they are accepted, and how many a step verifies."""
