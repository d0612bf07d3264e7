"""The default engine: exact prefix reuse. One pass over the prefix, everything else on the window's tokens.

Everything that changes between passes, the perturbation and the edit, is at the last L positions. Attention is causal,
so the keys and values of every earlier position are the same in all passes, and no gradient is needed there. Below the
lowest edited layer the window does not change either: passes start from its stored hidden state. ``docs/engine.md``
has the argument and its conditions.
"""

from __future__ import annotations

from latreft.engine.graphs import Graphs
from latreft.engine.interface import Defended
from latreft.engine.prepared import ReusePrepared
from latreft.engine.reference import FullSearch
from latreft.engine.search import ReuseSearch
from latreft.engine.window import Compiler, Tools
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier


class ReuseEngine:
    """Exact prefix reuse; full passes where nothing can be shared.

    ``capture`` False keeps every pass eager. ``compiled`` has the blocks of prefix and window passes compiled, which
    fuses their many small kernels; it takes a minute a job and a family of shapes, and pays on long trainings.
    """

    name = "reuse"

    def __init__(self, capture: bool = True, compiled: bool = False) -> None:
        self.tools = Tools(Graphs() if capture else None, Compiler() if compiled else None)

    def prepare(
        self, model: Classifier, batch: Batch, window: int, prefix_of: Classifier | None = None
    ) -> ReusePrepared:
        return ReusePrepared(model, batch, window, prefix_of, self.tools)

    def search(
        self, defended: Defended, content: tuple[int, ...], at: int, label: int, batch_size: int
    ) -> ReuseSearch | FullSearch:
        """A prefix attack leaves nothing to share: it takes the full path."""
        if 2 * at <= len(content):
            return FullSearch(defended, content, at, label, batch_size)
        return ReuseSearch(defended, content, at, label, batch_size, self.tools)
