// The vision tower of an assistant, and the encoding of the prompts' pictures as tokens.
#pragma once

#include "longspan/generation/assistant.h"

namespace longspan {

/// Adds the vision tower to the assistant's model, and sets the encoding of pictures; or sets the
/// reason why prompts cannot have pictures. Called before the parameters are loaded.
void take_pictures(Assistant& assistant, const AssistantRequest& request);

}  // namespace longspan
