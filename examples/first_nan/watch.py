"""Find the module that makes the first NaN of a model: attention scores that overflow half precision."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lab import nan

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    attn_implementation="eager",
)
model = LlamaForCausalLM(config).half().eval()
with torch.no_grad():
    attention = model.model.layers[2].self_attn
    attention.q_proj.weight.mul_(1e3)  # the planted bug: no key or query is infinite, but their product is
    attention.k_proj.weight.mul_(1e4)

with nan.watch(model) as watch, torch.no_grad():
    model(torch.arange(16).unsqueeze(0))

print(watch.status)
print(watch.sentence())
