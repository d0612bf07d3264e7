"""The default engine: exact prefix reuse. One pass over the prefix, everything else on the window's tokens.

Everything that changes between passes, the perturbation and the edit, is at the last L positions. Attention is causal,
so the keys and values of every earlier position are the same in all passes, and no gradient is needed there. Below the
lowest edited layer the window does not change either: passes start from its stored hidden state. ``docs/engine.md``
has the argument and its conditions.
"""

from __future__ import annotations

from collections.abc import Sequence

from latreft.engine.flight import Flight
from latreft.engine.graphs import Graphs, rounded
from latreft.engine.interface import Defended, TokenSearch
from latreft.engine.prepared import ReusePrepared
from latreft.engine.reference import FullSearch
from latreft.engine.search import ReuseSearch
from latreft.engine.whole import launch_bound
from latreft.engine.window import Compiled, Compiler, Tools
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier


class ReuseEngine:
    """Exact prefix reuse; full passes where nothing can be shared.

    ``capture`` False keeps every pass eager. ``compiled`` has the blocks of prefix and window passes compiled, which
    fuses their many small kernels; it takes a minute a job and a family of shapes, and pays on long trainings.
    ``"inner"`` compiles prefix passes of prepared batches and steps of PGD alone, nothing of an attack.
    """

    name = "reuse"

    def __init__(self, capture: bool = True, compiled: Compiled = False) -> None:
        compiler = Compiler(inner_only=compiled == "inner") if compiled else None
        self.tools = Tools(Graphs() if capture else None, compiler)
        self._latest: ReusePrepared | None = None

    def prepare(
        self, model: Classifier, batch: Batch, window: int, prefix_of: Classifier | None = None
    ) -> ReusePrepared:
        """A surrogate that stands in for the model prepared last, on the same batch, takes that one's prefix."""
        last, same = self._latest, None
        if prefix_of is not None and last is not None and last.model is prefix_of and last.batch is batch:
            same = last if last.window == min(window, batch.length) else None
        prepared = ReusePrepared(model, batch, window, prefix_of, self.tools, same)
        self._latest = prepared if prefix_of is None else last
        return prepared

    def search(
        self, defended: Defended, content: tuple[int, ...], at: int, label: int, batch_size: int
    ) -> ReuseSearch | FullSearch:
        """A prefix attack leaves nothing to share: it takes the full path."""
        if 2 * at <= len(content):
            return FullSearch(defended, content, at, label, batch_size)
        return ReuseSearch(defended, content, at, label, batch_size, self.tools)

    def groups(self, defended: Defended, places: Sequence[tuple[int, int]], size: int) -> list[list[int]]:
        """Suffix attacks on a model too small to fill the GPU, by the room that their contents need."""
        model, graphs = defended.classifier, self.tools.graphs
        together: dict[int, list[int]] = {}
        alone: list[list[int]] = []
        for index, (length, at) in enumerate(places):
            room = rounded(at, 1)
            suffix = 0 < at == length and size > 1
            if suffix and graphs is not None and graphs.usable(model.device) and launch_bound(model, room):
                together.setdefault(room, []).append(index)
            else:
                alone.append([index])
        split = [found[start : start + size] for found in together.values() for start in range(0, len(found), size)]
        return sorted([*alone, *split])

    def group(self, searches: Sequence[TokenSearch], tokens: int, size: int) -> Flight:
        members = [search for search in searches if isinstance(search, ReuseSearch)]
        assert len(members) == len(searches), "searches of a group share their prefixes"
        return Flight(members, tokens, size)
