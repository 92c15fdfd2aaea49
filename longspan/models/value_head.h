// The head of a reward model: one number from a hidden state. No torch.
#pragma once

namespace longspan {

/// Names as TRL's AutoModelForCausalLMWithValueHead and LLaMA-Factory write them in
/// value_head.safetensors: [1, D] and [1].
inline constexpr const char* kValueHeadWeight = "v_head.summary.weight";
inline constexpr const char* kValueHeadBias = "v_head.summary.bias";

}  // namespace longspan
