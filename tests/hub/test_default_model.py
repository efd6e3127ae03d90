"""The default model, from the hub or from the package index."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# The system line of the template, the question, and the start of the answer.
CHAT_IDS = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018]
CHAT_IDS += [411, 407, 19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47]
CHAT_IDS += [2, 198, 1, 520, 9531, 198]


def test_the_default_model_has_its_sizes_and_stop_token(smollm2_folder: Path) -> None:
    config = json.loads((smollm2_folder / "config.json").read_text())
    generation = json.loads((smollm2_folder / "generation_config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"]) == (576, 30)
    assert config["tie_word_embeddings"] is True
    assert generation["eos_token_id"] in (2, [2])  # the hub writes one id, we write a list


def test_the_default_model_renders_and_tokenizes_a_chat(smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    text = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    assert tokenizer.encode(text) == CHAT_IDS
    assert tokenizer.decode(CHAT_IDS) == text


def test_the_default_model_answers(smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    answer = tokenizer.encode("The capital of France is Paris.<|im_end|>")
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([CHAT_IDS + answer])).logits[0]  # [tokens, vocab]
    chosen = logits.argmax(-1)[len(CHAT_IDS) - 1 : -1]  # after each token before the last
    assert chosen.tolist() == answer
