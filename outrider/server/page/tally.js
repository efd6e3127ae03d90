// Sums over the rounds of one answer. Draws nothing.

/** What a round did, without its tree: the emitted tokens, and how many nodes were drafted at each depth. */
export function summaryOf(round) {
  const drafted = [];
  for (const depth of depthsOf(round.nodes)) if (depth) drafted[depth - 1] = (drafted[depth - 1] ?? 0) + 1;
  return { emitted: round.emitted, drafted };
}

export function numDrafted({ drafted }) {
  return sum(drafted);
}

export function numAccepted({ emitted }) {
  return emitted.filter((each) => each.depth > 0).length;
}

export class Tally {
  #first = 0; // time of the first token, ms
  #last = 0;
  #numPrompt = 0; // tokens of the step at the end of the prompt
  tokens = [];
  numRounds = 0; // steps after the one at the end of the prompt
  positions = []; // by depth - 1: {drafted, accepted} nodes; the sums below are over this table

  add(summary, now) {
    const isPrompt = this.tokens.length === 0;
    if (isPrompt) this.#first = now;
    this.#last = now;
    this.tokens.push(...summary.emitted.map((each) => each.token));
    if (isPrompt) {
      this.#numPrompt = this.tokens.length;
      return;
    }
    this.numRounds += 1;
    const accepted = numAccepted(summary);
    for (const [index, drafted] of summary.drafted.entries()) {
      const position = (this.positions[index] ??= { drafted: 0, accepted: 0 });
      position.drafted += drafted;
      position.accepted += index < accepted ? 1 : 0;
    }
  }

  get drafted() {
    return sum(this.positions.map((each) => each.drafted));
  }

  get accepted() {
    return sum(this.positions.map((each) => each.accepted));
  }

  /** Tokens per second after the first tokens, or 0 before there are others. */
  get rate() {
    const seconds = (this.#last - this.#first) / 1000;
    return seconds > 0 ? (this.tokens.length - this.#numPrompt) / seconds : 0;
  }

  /** Tokens that the steps after the prompt emitted. */
  get numDecoded() {
    return this.tokens.length - this.#numPrompt;
  }

  /** Tokens per step. Plain decoding emits one, so this is also the speed-up in steps. */
  get perStep() {
    return this.numRounds ? this.numDecoded / this.numRounds : 0;
  }
}

/** The depth of every node; a parent comes before its children. */
export function depthsOf(nodes) {
  const depths = [];
  for (const node of nodes) depths.push(node.parent < 0 ? 0 : depths[node.parent] + 1);
  return depths;
}

function sum(numbers) {
  return numbers.reduce((total, each) => total + each, 0);
}
