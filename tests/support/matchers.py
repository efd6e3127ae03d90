"""Matching in the process of the test: for reference answers, and for code that a test changes."""

from functools import partial

from outrider.structured import matcher_process, row_grammars
from outrider.structured.grammar_compiler import Compiler, describe_vocabulary
from outrider.structured.grammar_matcher import MatcherState
from outrider.structured.matcher_messages import StepTasks
from outrider.structured.matcher_process import MatchedRows
from outrider.structured.shared_masks import create_masks
from outrider.wire.grammar_spec import Grammar
from support.tiny_vocabulary import TINY


class MatcherStates:
    """Compiles grammars over the tiny vocabulary, each once."""

    def __init__(self):
        self._compiler, self._vocabulary = Compiler(TINY), describe_vocabulary(TINY)
        self._compiled = {}

    def make(self, grammar):
        """The grammar state of an empty text."""
        import xgrammar

        if grammar.spec not in self._compiled:
            self._compiled[grammar.spec] = xgrammar.CompiledGrammar.deserialize_json(
                self._compiler.compile(grammar.spec), self._vocabulary
            )
        return MatcherState(self._compiled[grammar.spec], grammar.ends)


def match_in_this_process(monkeypatch, states):
    """Let engines that are built from now on match here, with states such as `MatcherStates`."""
    monkeypatch.setattr(row_grammars, "MatcherPool", partial(LocalPool, states))
    monkeypatch.setattr(matcher_process, "bound_cpu", lambda _: None)  # it ends a process


class LocalPool:
    """Stands in for `MatcherPool`, for machines without xgrammar and for mutants."""

    def __init__(self, states, grammars, *, mask_rows, mask_words):
        self.masks = create_masks(rows=mask_rows, words=mask_words)
        self.check, self.compile = grammars.check, grammars.compile
        self._states = states
        self._loaded = {}

    def loaded(self, spec):
        if spec not in self._loaded:
            self._loaded[spec] = LocalGrammar(self._states, spec, self.masks)
        return self._loaded[spec]


class LocalGrammar:
    """Stands in for `LoadedGrammar`."""

    generation = 0

    def __init__(self, states, spec, masks):
        def make(ends):
            return states.make(Grammar(spec=spec, ends=ends))

        self._rows = MatchedRows(make, masks, slot=0)
        self._dropped = []

    def prepare(self):
        pass

    def hold(self, row):
        pass

    def release(self, row):
        pass

    def drop(self, row):
        self._dropped.append(row)

    def post(self, tasks, max_s):
        self._failed = self._rows.run(StepTasks(tasks=tasks, dropped=self._dropped, max_s=max_s))

    def collect(self):
        return self._failed

    def close(self):
        pass
