// Checks that a PEFT adapter is plain LoRA. No torch.
#pragma once

#include "longspan/input/json_object.h"

namespace longspan {

/// Throws UserError where adapter_config.json asks for more than B A x times a scale: a known key
/// with a value that changes the computation, or an unknown key with a value other than null, false
/// or empty.
void require_plain_lora(const JsonObject& config);

}  // namespace longspan
