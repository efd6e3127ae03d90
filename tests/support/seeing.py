"""Tiny models that read images, prompts for them, and what transformers answers."""

from outrider import LLM, SamplingParams
from support.tiny_vision import picture

PARAMS = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
WIDE, SMALL, TALL = picture(1, 30, 20), picture(2, 10, 12), picture(3, 16, 40)
PROMPTS = {  # @ is the placeholder of an image
    "middle": ("see @ now", [WIDE]),
    "three": ("@x@ y@z", [WIDE, SMALL, TALL]),
    "text": ("plain", []),
    "first": ("@abcabcabc", [SMALL]),
}


class Seeing:
    """A tiny model of a family that reads images, and what transformers answers."""

    def __init__(self, tiny, placeholder):
        self.folder = tiny.folder
        self.placeholder = placeholder
        self._tiny = tiny

    def spelled(self, text):
        return text.replace("@", self.placeholder)

    def reference(self, text, images, **more):
        return self._tiny.reference(self.spelled(text), images, **more)

    def scored(self, text, images, **more):
        return self._tiny.scored(self.spelled(text), images, **more)

    def prompt(self, text, images):
        spelled = self.spelled(text)
        return {"prompt": spelled, "multi_modal_data": {"image": images}} if images else spelled

    def load(self, **more):
        """Chunks of 14 tokens end inside of images."""
        usual = {"draft": "none", "block_size": 4, "max_num_batched_tokens": 14, "max_num_seqs": 4}
        sizes = {"dtype": "float32", "device": "cpu", "max_model_len": 160, "kv_tokens": 640}
        return LLM(self.folder, **{**usual, **sizes, **more})

    def outputs(self, llm, prompts=PROMPTS, params=PARAMS):
        """By the names of prompts, which are all in one batch."""
        given = [self.prompt(*prompt) for prompt in prompts.values()]
        outputs = llm.generate(given, params, use_tqdm=False)
        return dict(zip(prompts, outputs, strict=True))

    def answers(self, llm, prompts=PROMPTS):
        return answers_of(self.outputs(llm, prompts))


def answers_of(outputs):
    """Prompt and answer of each."""
    return {
        name: (each.prompt_token_ids, each.outputs[0].token_ids) for name, each in outputs.items()
    }


def logprobs_of(output):
    """Of the tokens of an answer."""
    (answer,) = output.outputs
    pairs = zip(answer.logprobs, answer.token_ids, strict=True)
    return [own[token].logprob for own, token in pairs]
