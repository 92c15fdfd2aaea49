// Is an adapter of PEFT's plain LoRA? No torch.
#pragma once

#include "longspan/input/json_object.h"

namespace longspan {

/// Throws UserError where adapter_config.json asks for anything beside B A x times a scale: a key
/// that is known with another value than those that change nothing, or a key that is not known
/// whose value asks for something.
void require_plain_lora(const JsonObject& config);

}  // namespace longspan
