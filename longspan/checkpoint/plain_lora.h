// Checks that a PEFT adapter is plain LoRA. No torch.
#pragma once

#include "longspan/input/json_object.h"

namespace longspan {

/// Throws UserError where adapter_config.json changes the computation scale * B A x: by the value
/// of a known key, or by an unknown key with a value other than null, false or empty.
void require_plain_lora(const JsonObject& config);

}  // namespace longspan
