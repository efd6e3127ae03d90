"""The text of one output: what is certain so far, and whether a stop string ended it."""

from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.detokenizer import Detokenizer
from outrider.frontend.tokenizer.stop_strings import StopScan, StopStrings
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer

_TAIL = 8  # prompt tokens that tell how the answer joins on: more than any one character needs


class OutputText:
    """Owns what is held back: bytes of an unfinished character, the start of a stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer | NoTokenizer,
        params: SamplingParams,
        *,
        prompt: tuple[int, ...],
    ) -> None:
        self._detokenizer = Detokenizer(
            tokenizer if params.detokenize else NoTokenizer(eos_ids=frozenset()),
            skip_special=params.skip_special_tokens,
            prompt_tail=prompt[-_TAIL:],
        )
        self._stops = StopStrings(params.stops, include=params.include_stop_str_in_output)
        self._unscanned = params.min_tokens  # tokens to come whose text may hold a stop string

    def push(self, token: int) -> StopScan:
        """The text that this token makes certain."""
        text = self._detokenizer.push((token,))
        if self._unscanned > 0:
            self._unscanned -= 1
            return StopScan(text=text, matched="")
        return self._stops.push(text)

    def finish(self) -> StopScan:
        """The text that was held back."""
        scan = self._stops.push(self._detokenizer.finish())
        if scan.matched:
            return scan
        return StopScan(text=scan.text + self._stops.finish(), matched="")
