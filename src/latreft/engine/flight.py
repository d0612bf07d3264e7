"""Several discrete attacks in flight: the passes of examples that attack the same model run together.

One example's candidates do not fill a GPU on a small model. Each example keeps its own prefix; a pass serves all of
them, as a batch of several prefixes with equally many rows each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from latreft.engine.graphs import Captured, Graphs, capture, rounded
from latreft.engine.reference import losses_of
from latreft.engine.search import ReuseSearch, SharedContent


class Flight:
    """Up to ``size`` suffix attacks of ``tokens`` tokens on one defended model, whose prefixes need the same room."""

    def __init__(self, members: Sequence[ReuseSearch], tokens: int, size: int):
        first, graphs = members[0], members[0].tools.graphs
        assert graphs is not None, "only captured passes run together"
        self.members = members
        shared = [member.shared_by(tokens) for member in members]
        room = rounded(max(one.prefix.positions for one in shared), 1)
        key = ("flight", *first.defense_key(), tokens, room, size)
        self.place: FlightPlace = graphs.once(
            key, first.defended, lambda: FlightPlace(first, shared[0], room, size, graphs)
        )
        self.place.fill(shared, [member.label for member in members])

    def gradients(self, attacks: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """d loss / d one-hot [N, V] of the attack tokens [N] of the members asked for."""
        return self.place.gradients(attacks)

    @torch.no_grad()
    def losses(self, candidates: Mapping[int, Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
        """Losses [C] and logits [C, 2] of the candidate rows [C, N] of the members asked for, C being their own.

        Where that does not fit the device's memory, each member runs alone, in batches that halve.
        """
        try:
            found = self.place.logits(candidates, self.members[0].batch_size)
        except torch.OutOfMemoryError:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return {i: self.members[i].losses(rows) for i, rows in candidates.items()}
        labels = {
            i: torch.full((len(logits),), self.members[i].label, device=logits.device) for i, logits in found.items()
        }
        return {i: (losses_of(logits, labels[i]), logits) for i, logits in found.items()}


class FlightPlace:
    """The fixed place on which the passes of a flight are captured; rows that no member fills are copies."""

    def __init__(self, search: ReuseSearch, like: SharedContent, room: int, size: int, graphs: Graphs):
        self.search, self.graphs, self.size = search, graphs, size
        self.shared = SharedContent(like.prefix.roomy(room, size), like.positions.repeat(size, 1), like.edited)
        self.labels = torch.zeros(size, dtype=torch.long, device=like.positions.device)

    def fill(self, shared: Sequence[SharedContent], labels: Sequence[int]) -> None:
        """Take in the members' contents; the first one's stands where there are too few."""
        for row in range(self.size):
            one = shared[row] if row < len(shared) else shared[0]
            self.shared.prefix.take(one.prefix, row)
            self.shared.positions[row : row + 1].copy_(one.positions)
        self.labels.copy_(torch.tensor([*labels, *[labels[0]] * (self.size - len(labels))]))

    def _together(self, asked: Mapping[int, Tensor]) -> Tensor:
        """The members' rows as one tensor; a member that asks nothing gets another's."""
        device = self.labels.device
        some = next(iter(asked.values()))
        return torch.stack([asked.get(i, some).to(device) for i in range(self.size)])

    def _captured(self, what: str, size: int, function: Callable[..., Tensor], rows: Tensor) -> Captured:
        key = ("flight", what, id(self), size)
        return self.graphs.once(key, self, lambda: capture(function, [rows], self.graphs.pool))

    def gradients(self, attacks: Mapping[int, Tensor]) -> dict[int, Tensor]:
        def function(tokens: Tensor) -> Tensor:
            return self.search.gradients_of(tokens, self.labels, self.shared)

        rows = self._together(attacks)  # [E, N]
        found = self._captured("gradient", 1, function, rows)(rows).clone()
        return {i: found[i] for i in attacks}

    def logits(self, candidates: Mapping[int, Tensor], limit: int) -> dict[int, Tensor]:
        """Logits [C, 2] of each member's candidates, at most ``limit`` a member in one pass."""
        parts: dict[int, list[Tensor]] = {i: [] for i in candidates}
        for start in range(0, max(map(len, candidates.values())), limit):
            chunk = {i: rows[start : start + limit] for i, rows in candidates.items() if len(rows) > start}
            for i, logits in self._logits(chunk, limit).items():
                parts[i].append(logits)
        return {i: torch.cat(found) for i, found in parts.items()}

    def _logits(self, candidates: Mapping[int, Tensor], size: int) -> dict[int, Tensor]:
        """One pass; every member's rows are made ``size`` by copies of its first."""
        even = {i: torch.cat([rows, rows[:1].expand(size - len(rows), -1)]) for i, rows in candidates.items()}
        rows = self._together(even)  # [E, C, N]

        def function(tokens: Tensor) -> Tensor:
            flat = self.search.logits_of(tokens.flatten(0, 1), self.shared)
            return flat.view(self.size, -1, flat.shape[-1])

        found = self._captured("logits", size, function, rows)(rows).clone()
        return {i: found[i, : len(own)] for i, own in candidates.items()}
