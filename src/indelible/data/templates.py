"""Chat templates by name, for tokenizers that bring none or trainers that used another.

Each is a Jinja template as tokenizers carry them: `messages`, `add_generation_prompt`, and the tokenizer's special
tokens as variables. transformers drops the line break after a block, hence `{{ '\\n\\n' }}` behind one.
"""

from __future__ import annotations

PLAIN = (
    "{% for m in messages %}### {{ m.role | capitalize }}:\n{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}### Assistant:\n{% endif %}"
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

# The released ICP-MIA code writes Llama-3 markers by hand for every model, adds no BOS, and strips every turn but
# the scored answer.
ICP_MIA = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if loop.last and m.role == 'assistant' %}{{ m.content }}{% else %}{{ m.content | trim }}{% endif %}"
    "<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

ALPACA = (
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n"
    "{% elif m.role == 'assistant' %}### Response:\n{{ m.content }}{{ eos_token }}\n\n"
    "{% else %}{{ m.content }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Response:\n{% endif %}"
)

TEMPLATES: dict[str, str] = {
    "plain": PLAIN,
    "chatml": CHATML,
    "llama3": LLAMA3,
    "alpaca": ALPACA,
    "icp-mia": ICP_MIA,
}

# What ends an assistant turn under these templates where the tokenizer does not know the marker as a special token.
END_MARKERS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>")
