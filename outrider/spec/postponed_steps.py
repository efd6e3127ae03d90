"""Plain steps that a draft model has not read yet.

Reading the tokens of several steps at once costs little more than reading those of one. Only a host
that runs every step itself can decide when: on a GPU a step is a captured graph.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from outrider.models.draft_model import ModelFacts
from outrider.ops.tree.plan_rows import Queries
from outrider.step.device_stream import is_host
from outrider.step.plan import StepPlan

# That wait. A reading of few is dear, for weights come from cold memory (64 tokens 460 us, 256
# tokens 900 us); one of many delays a step.
_MOST_TOKENS = 256

# Reads the query tokens of a plan, given the aux hidden states [num_query, aux] before them. The
# last of them are one of each row [rows]: the hidden states after those are stored.
CatchUp = Callable[[StepPlan, torch.Tensor, torch.Tensor], None]


class PostponedSteps:
    """Owns the tokens, places and aux hidden states of a few plain steps of the same rows.

    A draft model reads them before anything else reads or writes its KV, so in the order in which
    it would have read them. Their slots are stored: a row that ended may have other pages by then.
    Other rows may have got the same slots, so steps of other rows are not read together with these.
    """

    def __init__(self, catch_up: CatchUp) -> None:
        self._catch_up = catch_up
        self._numbers: list[torch.Tensor] = []  # [4, rows] each: row, token, position, slot
        self._aux: list[torch.Tensor] = []  # [rows, aux] each

    def add(
        self,
        target: StepPlan,  # of a step with one query token for each row
        emitted: torch.Tensor,  # [rows, 1] the token after it
        aux_hidden_states: torch.Tensor,  # [rows, aux]
        draft: StepPlan,  # any one of the draft model
    ) -> None:
        """Store a step. Its tensors are copied: the next step overwrites them."""
        rows, queries = target.decode.rows, target.queries
        numbers = torch.stack([rows, emitted.squeeze(1), queries.positions, queries.slots])
        if self._numbers and not torch.equal(self._numbers[-1][0], numbers[0]):
            self.read(draft)
        self._numbers.append(numbers)
        self._aux.append(aux_hidden_states.clone())
        if len(self._numbers) * numbers.shape[1] >= _MOST_TOKENS:
            self.read(draft)

    def read(self, draft: StepPlan) -> None:
        """Let the draft model read all steps that wait."""
        if not self._numbers:
            return
        numbers, aux_hidden_states = torch.cat(self._numbers, dim=1), torch.cat(self._aux)
        last_rows = self._numbers[-1][0]
        self.drop()
        _, tokens, positions, slots = numbers.clamp_min_(0).unbind()  # as plans are filled
        none = tokens[:0]
        queries = Queries(
            tokens=tokens,
            positions=positions,
            slots=slots,
            window_slots=none,
            of_nodes=none[:, None],
            adapters=none,
        )
        self._catch_up(replace(draft, queries=queries), aux_hidden_states, last_rows)

    def drop(self) -> None:
        """Forget all steps that wait."""
        self._numbers, self._aux = [], []


def can_postpone(facts: ModelFacts, device: torch.device) -> bool:
    """Whether a catch-up depends on its query tokens alone, and the host runs it.

    Then the target's own positions and slots are those of the draft model. With adapters it depends
    on the rows of the tokens, too, and these may have ended.
    """
    is_simple = facts.begins_with_forward and not facts.lead and not facts.has_adapters
    return is_simple and is_host(device)
