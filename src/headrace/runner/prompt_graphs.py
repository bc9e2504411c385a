"""Steps with prompts of few tokens as CUDA graphs: one for each shape, captured at start and replayed with new numbers.

Launching such a step kernel by kernel takes a multiple of the time that the device needs for it.
"""

from __future__ import annotations

from torch import Tensor

from headrace.plan.graph_rows import PromptShape, shape_of
from headrace.runner.graphs import Captured, StepGraph
from headrace.runner.prompt_batch import PromptInputs, batch_of, prompts_of, write
from headrace.runner.sampler import Drawn
from headrace.runner.upload import Upload
from headrace.types import Row


class PromptGraph:
    """A step of one shape. Tokens that the rows lack are a row of their own in the padding slot and page; rows that a step
    lacks have none. Page updates, of any number, come before the graph, since a prompt is given all its pages at once.

    upload: of any steps, one after the other.
    """

    def __init__(self, shape: PromptShape, upload: Upload, over: Captured) -> None:
        self.shape, self._upload, self._over = shape, upload, over
        inputs = self.write(())
        self._inputs = inputs
        self.where, self.at = upload.tensor(inputs.drawn_slots), upload.tensor(inputs.drawn_at)
        self.graph = StepGraph(self.compute, self.where, self.at, over)

    def write(self, rows: tuple[Row, ...]) -> PromptInputs:
        """Send the numbers of rows that are `singles_first`."""
        inputs = write(self._upload, self.shape, rows, self._over.tables)
        self._upload.send()
        return inputs

    def replay(self, rows: tuple[Row, ...]) -> Drawn | None:
        """Run the step for rows that are `singles_first` and fit the shape, and draw the tokens of those that sample any."""
        inputs = self.write(rows)
        if inputs.updated.count:
            self._over.tables.apply(self._upload.tensor(inputs.updated), self._upload.tensor(inputs.pages))
        return self.graph.replay([row.slot for row in rows if row.samples])

    def compute(self, *, outline: bool = False) -> Tensor:
        """Logits [D, vocab] in the model's type."""
        over = self._over
        decoder = over.outline if outline else over.decoder
        if outline:
            self.write(())  # what runs is to find numbers of its own shape
        batch = batch_of(self._upload, self.shape, self._inputs, over.tables, over.sampler.next_tokens)
        return decoder.scores(decoder(batch, over.pools, self._upload.tensor(self._inputs.ends)))


class PromptGraphs:
    """The graphs of all shapes."""

    def __init__(self, shapes: tuple[PromptShape, ...], upload: Upload, over: Captured) -> None:
        self._shapes = shapes
        self._graphs = {shape: PromptGraph(shape, upload, over) for shape in reversed(shapes)}

    @property
    def steps(self) -> list[StepGraph]:
        """The largest first: the others fit into its memory."""
        return [graph.graph for graph in self._graphs.values()]

    def graph_for(self, rows: tuple[Row, ...]) -> PromptGraph | None:
        """The graph that runs these rows; None if one has drafts, or there is no graph so large."""
        if any(row.drafts for row in rows):
            return None
        tokens = sum(len(row.tokens) or 1 for row in rows)
        shape = shape_of(tokens, len(rows), prompts_of(rows), self._shapes)
        return None if shape is None else self._graphs[shape]
