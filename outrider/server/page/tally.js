// Sums over the rounds of one answer. Draws nothing.

export class Tally {
  #first = 0; // time of the first token, ms
  #last = 0;
  tokens = [];
  numRounds = 0; // without the step at the end of the prompt
  kept = 0;
  drafted = 0;
  positions = []; // by depth - 1: rounds that {reached, kept} it

  add(rounds, now) {
    if (rounds.length && !this.tokens.length) this.#first = now;
    if (rounds.length) this.#last = now;
    for (const round of rounds) this.#addRound(round);
  }

  #addRound(round) {
    const isPrompt = this.tokens.length === 0;
    this.tokens.push(...round.emitted.map((each) => each.token));
    if (isPrompt) return;
    const kept = round.path.length - 1;
    this.numRounds += 1;
    this.kept += kept;
    this.drafted += round.nodes.length - 1;
    const deepest = Math.max(...depthsOf(round.nodes));
    for (let depth = 1; depth <= deepest; depth++) {
      const position = (this.positions[depth - 1] ??= { reached: 0, kept: 0 });
      position.reached += 1;
      position.kept += depth <= kept ? 1 : 0;
    }
  }

  /** Tokens per second after the first tokens, or 0 before there are others. */
  get rate() {
    const seconds = (this.#last - this.#first) / 1000;
    return seconds > 0 ? (this.tokens.length - 1) / seconds : 0;
  }

  get perRound() {
    return this.numRounds ? 1 + this.kept / this.numRounds : 0;
  }
}

/** The depth of every node; a parent comes before its children. */
export function depthsOf(nodes) {
  const depths = [];
  for (const node of nodes) depths.push(node.parent < 0 ? 0 : depths[node.parent] + 1);
  return depths;
}
